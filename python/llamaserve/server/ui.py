"""The page at `/`, and the files of `--path`."""

from __future__ import annotations

from pathlib import Path

from litestar import MediaType, get
from litestar.handlers import HTTPRouteHandler
from litestar.router import Router
from litestar.static_files import create_static_files_router

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>llamaserve</title>
<body style="font-family: sans-serif; max-width: 40em; margin: 4em auto">
<h1>llamaserve</h1>
<p>The server runs. Its API is that of <code>llama-server</code>; OpenAI clients use
<code>{prefix}/v1</code> of this address as their base URL.</p>
<ul>
<li><a href="{prefix}/health">{prefix}/health</a>: is the model loaded?</li>
<li><a href="{prefix}/v1/models">{prefix}/v1/models</a>: which model is it?</li>
<li><a href="{prefix}/schema/openapi.json">{prefix}/schema/openapi.json</a>: all routes, as an OpenAPI document</li>
</ul>
</body>
</html>
"""


def handlers(folder: str | None, prefix: str) -> list[HTTPRouteHandler | Router]:
    """The routes of the page: the files of `folder` if there is one, else a page that says what runs here."""
    if folder:
        return [create_static_files_router("/", [Path(folder)], html_mode=True, include_in_schema=False)]
    html = PAGE.format(prefix=prefix)

    @get(["/", "/index.html"], media_type=MediaType.HTML, include_in_schema=False)
    async def page() -> str:
        return html

    return [page]
