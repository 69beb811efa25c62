"""Media input: llama-server's options, not supported yet."""

from __future__ import annotations

from .spec import Option
from .table_unsupported import later
from .values import Float, Int, Str, Switch, ValueType, path


def _media(
    dest: str, *flags: str, type: ValueType, help: str, env: str | None = None, default: object = None
) -> Option:
    return later(dest, *flags, type=type, section="media", note="media input", help=help, env=env, default=default)


MEDIA = (
    _media("mmproj", "-mm", "--mmproj", env="MMPROJ", type=path(), help="Multimodal projector."),
    _media("mmproj_url", "-mmu", "--mmproj-url", env="MMPROJ_URL", type=Str("URL"), help="Where to fetch it."),
    later(
        "mmproj_auto",
        "--mmproj-auto",
        negative=("--no-mmproj", "--no-mmproj-auto"),
        env="MMPROJ_AUTO",
        type=Switch(),
        section="media",
        note="media input",
        help="Use the projector that comes with the model.",
        accepts=(False,),
    ),
    later(
        "mmproj_offload",
        "--mmproj-offload",
        negative=("--no-mmproj-offload",),
        env="MMPROJ_OFFLOAD",
        type=Switch(),
        section="media",
        note="media input",
        help="Run the projector on the GPU.",
    ),
    Option(
        dest="mmproj_device",
        flags=("-mmdev", "--mmproj-device"),
        env="MTMD_BACKEND_DEVICE",
        type=Str("NAME"),
        section="media",
        scope="engine",
        supported=False,
        note="media input",
        help="Device to run the projector on.",
    ),
    _media("image_min_tokens", "--image-min-tokens", env="IMAGE_MIN_TOKENS", type=Int(), help="Fewest for an image."),
    _media("image_max_tokens", "--image-max-tokens", env="IMAGE_MAX_TOKENS", type=Int(), help="Most for an image."),
    _media(
        "mtmd_batch_max_tokens",
        "--mtmd-batch-max-tokens",
        env="MTMD_BATCH_MAX_TOKENS",
        type=Int(),
        default=1024,
        help="Most image tokens encoded at once.",
    ),
    _media("video_fps", "--video-fps", env="VIDEO_FPS", type=Float(), default=4, help="Frames of video a second."),
    _media(
        "video_timestamp_interval",
        "--video-timestamp-interval",
        env="VIDEO_TIMESTAMP_INTERVAL",
        type=Int(metavar="MS"),
        default=5000,
        help="Milliseconds between written times in a video.",
    ),
    _media("video_ffmpeg_dir", "--video-ffmpeg-dir", env="VIDEO_FFMPEG_DIR", type=path("DIR"), help="Where ffmpeg is."),
    later(
        "media_path",
        "--media-path",
        type=path("DIR"),
        section="media",
        scope="server",
        note="media input",
        help="Folder of media files that requests may name.",
    ),
)
