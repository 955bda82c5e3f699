"""The blocks of the documents, and the mark on the line before a block that says where its commands run, or why they do not:

    <!-- not run: why -->           by nobody, or by the test that this names
    <!-- run on: machines -->       test_guides.py, as at the other places of PLACES; test_guide_tls.py has hosts of its own
    without a mark                  test_docs.py: the blocks of a page in order, in one shell, in an empty directory

Commands stand in blocks marked `sh`. Blocks marked `text` are output, drawings and formats."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Documents for users. Others describe code and formats.
GUIDES = [ROOT / "README.md", ROOT / "deploy/README.md", ROOT / "worker/python/README.md", *sorted((ROOT / "deploy/docs").glob("*.md"))]
PLACES = ["machines", "machines, A with systemd", "systemd", "the source tree", "two hosts with systemd", "one host with systemd"]
BLOCK = re.compile(r"^(?:#+ (?P<heading>[^\n]*)|(?:<!-- (?P<how>not run|run on): *(?P<mark>[^\n]*?) *-->\n)?```(?P<kind>[a-z]*)\n(?P<text>.*?)^```)$", re.M | re.S)
# A line that one would type. `psd listens on ...` is output.
COMMAND = re.compile(r"^(?:\$ |sudo )?(?:psd (?:-|\.\.\.)|psctl [a-z]|psbench -|psworker (?:train|eval|predict|synth|serve|key) |(?:make|apt-get|apt|dpkg|systemctl|"
                     r"journalctl|etcdctl|kubectl|podman|docker|sbatch|pip3?|(?:/usr/bin/)?python3|curl|cc|cp|rm|mkdir|sed|kill|git|export|cd|openssl) [^|=])", re.M)


@dataclasses.dataclass
class Block:
    page: pathlib.Path
    heading: str
    how: str  # "not run", "run on", or None
    mark: str
    kind: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}: {self.heading}"


def blocks(page):
    found, heading = [], ""
    for match in BLOCK.finditer(page.read_text()):
        if match["heading"]:
            heading = match["heading"]
        elif match["kind"] is not None:
            found.append(Block(page, heading, match["how"], match["mark"], match["kind"], match["text"]))
    return found


def run_on(place):
    return [block for page in GUIDES for block in blocks(page) if block.how == "run on" and block.mark == place]


def lines(block):
    """Its commands, each whole: (command, what the comment at its end says)."""
    whole = re.sub(r"\\\n\s*", " ", block.text)
    split = [re.fullmatch(r"(.*?)(?:\s+# *(.*))?", line) for line in whole.splitlines() if line.strip() and not line.startswith("#")]
    return [(match[1].strip(), match[2] or "") for match in split]
