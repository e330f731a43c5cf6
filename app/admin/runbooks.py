"""
The runbooks, as the gateway itself has them: whoever reaches the console reaches what it says to do.

A package has them beside this module; a working copy of the repository, in its docs.
"""

from pathlib import Path

from fastapi import FastAPI, Response

from app.admin.console import HEADERS
from app.admin.scopes import OPEN

FOLDERS = (Path(__file__).parent / "runbook_pages", Path(__file__).parents[2] / "docs" / "runbooks")


def add_runbooks(app: FastAPI) -> None:
    """Add the path of a runbook's text, which has no secret; the texts are read once."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    texts = {path.stem: path.read_bytes() for path in folder.glob("*.md")}

    @app.get("/runbooks/{name}", dependencies=[OPEN])
    async def get_runbook(name: str) -> Response:
        """Return a runbook as text."""
        if name not in texts:
            return Response(status_code=404, headers=HEADERS)
        return Response(texts[name], headers=HEADERS, media_type="text/plain; charset=utf-8")
