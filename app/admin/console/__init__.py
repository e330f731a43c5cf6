"""
The console: one page for operators, of static files, which reads the admin port's other paths.

The files have no secret, so the page loads without a token, and requests one when a path needs it. Its URLs
are relative. Its content security policy forbids inline code, other origins, and text that becomes markup.
"""

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request, Response

from app.admin.scopes import OPEN

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"

PATH = "/console"

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_console(app: FastAPI) -> None:
    """Add the page and its files, which are read once."""
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES}
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in files.items()}

    def answer(request: Request, name: str) -> Response:
        if name not in files:
            return Response(status_code=404, headers=HEADERS)
        headers = HEADERS | {"ETag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(files[name], headers=headers, media_type=MEDIA_TYPES[Path(name).suffix])

    @app.get("/", dependencies=[OPEN])
    @app.get(PATH, dependencies=[OPEN])
    async def get_console() -> Response:
        """Redirect to the console by a relative URL: a proxy may have removed a prefix of the path."""
        return Response(status_code=307, headers=HEADERS | {"Location": f"{PATH[1:]}/"})

    @app.get(f"{PATH}/", dependencies=[OPEN])
    async def get_page(request: Request) -> Response:
        """Return the page."""
        return answer(request, PAGE)

    @app.get(f"{PATH}/{{name}}", dependencies=[OPEN])
    async def get_file(request: Request, name: str) -> Response:
        """Return a file of the page."""
        return answer(request, name)
