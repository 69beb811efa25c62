"""Time per token to parse a long chat answer with tools: `python -m benchmarks.chat_parsing`.

Needs no peer and little machine: the answer is made up, the model is only there for its template.
"""

from __future__ import annotations

import json
import time

from llamaserve import Engine

from tests import models

N_TOKENS = 8000
MESSAGES = [{"role": "user", "content": "Write the file."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
LINE = 'if (a < b && s == "x") { return f(a, "{}"); }\n'


def pieces(text: str) -> list[str]:
    """About `N_TOKENS` pieces of four characters."""
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def main() -> None:
    code = LINE * (4 * N_TOKENS // len(LINE))
    call = json.dumps({"name": "write_file", "arguments": {"text": code}})
    answers = {"text": code, "one long call": f"<tool_call>\n{call}\n</tool_call>"}
    with Engine(models.smollm2(), ctx_size=256, parallel=1) as engine:
        prompt = engine.apply_template(MESSAGES, tools=[TOOL], stream=True)
        for name, text in answers.items():
            parts = pieces(text)
            parser = prompt.parser()
            halves = []
            for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]):
                start = time.perf_counter()
                for part in half:
                    parser.feed(part)
                halves.append((time.perf_counter() - start) / len(half) * 1e6)
            parser.feed("", final=True)
            print(
                f"{name}: {len(parts)} tokens, {halves[0]:.1f} us a token in the first half, "
                f"{halves[1]:.1f} in the second; "
                f"the parser read {parser.parsed_bytes / len(text):.1f} times the text"
            )


if __name__ == "__main__":
    main()
