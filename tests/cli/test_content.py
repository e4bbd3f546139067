"""Images and files on the command line: given by their paths, shown by their names."""

from pathlib import Path

import pytest

from agentq import Image
from tests.cli.program import Program
from tests.images import PDF, png

pytestmark = pytest.mark.xdist_group("cli-served")


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "photo.png").write_bytes(png(1))
    (tmp_path / "report.pdf").write_bytes(PDF)
    return str(tmp_path / "photo.png"), str(tmp_path / "report.pdf")


def test_an_image_and_a_file_go_with_the_message_and_are_shown_by_name(
    served: Program, pictures: tuple[str, str]
) -> None:
    photo, report = pictures
    words = ("--image", photo, "--file", report, "--image", "https://x.invalid/a.png", "--thread", "pictures")
    done = served("run", "painter", "look", *words, "--json")
    assert (done.code, done.json["text"]) == (0, f"{len(png(1))} 0 {len(PDF)} {len(png(2))}")
    shown = served("runs", "show", done.json["run_id"], "--messages").out
    of_thread = served("threads", "show", "pictures").out
    for out in (shown, of_thread):
        assert f"[image photo.png, image/png, {len(png(1))} bytes]" in out
        assert "[image, image/png, x.invalid]" in out
        assert f"[file report.pdf, application/pdf, {len(PDF)} bytes]" in out
        assert f"draw -> drawn\n[image chart.png, image/png, {len(png(2))} bytes]" in out
        assert "PNG\r\n" not in out
    as_json = served("threads", "show", "pictures", "--json").lines[0]
    assert as_json["media"][0]["sha256"] == Image.from_bytes(png(1)).sha256
    assert "data" not in as_json["media"][0]


def test_a_wrong_path_is_said_at_once(served: Program, pictures: tuple[str, str]) -> None:
    done = served("run", "painter", "look", "--image", "nowhere.png")
    assert (done.code, done.out) == (2, "")
    assert "image 'nowhere.png': there is no file 'nowhere.png'; give the path of one" in done.err
    done = served("run", "painter", "look", "--image", pictures[1])
    assert done.code == 2
    assert "it is application/pdf, no image; use File for it" in done.err
