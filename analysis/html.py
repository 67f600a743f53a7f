"""What every page is made of: one document without network, tables, figures, listings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["document", "listing", "noted", "titled", "verdict"]

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def document(title: str, body: str, specs: Mapping[str, Any]) -> str:
    """The whole of a page.

    Args:
        title: of the window.
        body: HTML; it has an element `id` for each figure.
        specs: id of a figure -> plotly's JSON.
    """
    from plotly.offline import get_plotlyjs

    here = Path(__file__)
    # No text of a study can end the element that holds it.
    data = _json(specs).replace("<", "\\u003c")
    library = get_plotlyjs().replace("</script", "<\\/script")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{here.with_name("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
{body}
<script type="application/json" id="figures">{data}</script>
<script>{library}</script>
<script>
{here.with_name("page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def titled(title: str, inner: str) -> str:
    """A heading and what stands below it."""
    return f"<h2>{escape(title)}</h2>\n{inner}"


def noted(title: str, note: str, inner: str) -> str:
    """A heading, a note (text), and figures (HTML)."""
    return titled(title, f'<p class="soft">{escape(note)}</p>{inner}')


def listing(title: str, values: Mapping[str, Any]) -> str:
    """Names and values; what is empty is left out."""
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in values.items() if v)
    return titled(title, f"<dl>{rows}</dl>")


def verdict(word: str) -> str:
    """A verdict in its colour."""
    return f'<span class="verdict {escape(word)}">{escape(word)}</span>'


def _json(specs: Mapping[str, Any]) -> str:
    dump = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode
    try:
        return dump(specs)
    except ValueError:  # a sum of values near the largest float; plotly leaves out what is null
        return dump(_finite(specs))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
