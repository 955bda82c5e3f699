"""psctl's help, its completions and its forms of output, which all come from one table."""

import json
import os
import pty
import re
import shutil
import subprocess

import pytest
import wire
from conftest import BIN, eventually
from wire import floats

pytestmark = pytest.mark.timeout(300)


def psctl(*args, **more):
    return subprocess.run([str(BIN / "psctl"), *args], capture_output=True, text=True, timeout=120, **more)


def commands():
    return re.findall(r"^  ([a-z]+) ", psctl("help").stdout, re.M)


def test_every_command_has_help_with_an_example():
    names = commands()
    assert {"status", "tables", "workers", "jobs", "why", "row", "restore", "completion", "help"} <= set(names)
    for name in names:
        got = psctl("help", name)
        assert (got.returncode, got.stderr) == (0, ""), name
        assert got.stdout.startswith(f"usage: psctl {name}") and "\nexamples:\n  " in got.stdout, name
        assert "always:" in got.stdout and got.stdout == psctl(name, "--help").stdout == psctl("-h", name).stdout
        assert max(map(len, got.stdout.splitlines())) <= 120, name
        example = got.stdout[got.stdout.index("\nexamples:\n"):]
        assert re.search(rf"psctl (watch )?{name}\b", example), name


def test_help_of_a_command_has_its_own_settings_alone():
    row, restore = psctl("row", "-h").stdout, psctl("restore", "-h").stdout
    assert "--server" in row and "--shards" not in row
    assert "--shards" in restore and "--server" not in restore


def test_help_cert_and_completion_have_json(tmp_path):
    every = json.loads(psctl("help", "--json").stdout)
    assert [c["name"] for c in every["commands"]] == commands() and every["usage"] == "psctl COMMAND [options]"
    for c in every["commands"]:
        text = psctl("help", c["name"]).stdout
        assert set(re.findall(r"^  --([a-z-]+)", text, re.M)) - {"config", "check", "print-config", "help", "version"} == {s["name"] for s in c["settings"]}
        assert all(e["command"] in text and e["text"] in text for e in c["examples"]) and c["examples"] and c["group"]
        assert all(s["choices"] == s["value"].split("|") for s in c["settings"] if "choices" in s)
    status = next(c for c in every["commands"] if c["name"] == "status")
    assert json.loads(psctl("status", "--help", "-ojson").stdout) == json.loads(psctl("help", "status", "--json").stdout) == status
    assert json.loads(psctl("help", "all", "--json").stdout) == every
    for shell in ("bash", "zsh"):
        assert json.loads(psctl("completion", shell, "--json").stdout) == {"shell": shell, "script": psctl("completion", shell).stdout}
    made, again = (json.loads(psctl("cert", str(tmp_path / "tls"), "--json").stdout) for _ in range(2))
    assert [f["role"] for f in made["files"]] == ["ca", "node", "worker", "reader", "operator", "admin"]
    assert all(f["made"] and os.path.exists(f["certificate"]) and os.path.exists(f["key"]) for f in made["files"])
    assert [{**f, "made": True} for f in again["files"]] == made["files"] and not any(f["made"] for f in again["files"])
    got = psctl("cert", str(tmp_path / "tls"), "--json", "--cluster", "other")
    assert (got.returncode, got.stdout) == (1, "") and "is of psd://psd/node" in got.stderr


def test_help_without_a_command_lists_all():
    text = psctl("help").stdout
    assert text == psctl("-h").stdout == psctl("--help").stdout
    lines = text.splitlines()
    assert len(lines) < 48 and max(map(len, lines)) <= 80  # to be scanned
    assert len(re.findall(r"^[A-Z][a-z ]+:$", text, re.M)) == 4 and all(re.match(r"  \S.{27}\S", line) for line in lines if line[:1] == " ")
    every = psctl("help", "all").stdout
    assert re.findall(r"^([a-z]+)(?: [A-Z\[][^:\n]*| bash\|zsh)?: ",
                      every[every.index("\nstatus: "):every.index("PATH is a data directory")], re.M) == commands()


@pytest.mark.parametrize("args, words", [
    (["help", "tabels"], 'unknown command "tabels"; did you mean "tables"?'),
    (["tabels", "--help"], 'unknown command "tabels"; did you mean "tables"?'),
    (["xyzzy"], 'unknown command "xyzzy"; psctl help lists what there is'),
    (["completion", "fish"], 'completion: found "fish", expected bash or zsh'),
    (["completion"], "completion: expected psctl completion bash|zsh"),
    (["status", "-o", "xml"], '"xml" is not one of text|wide|json'),
    (["status", "-o", "wide", "--json"], "exclude each other"),
    (["status", "--node", "1024"], 'node: "1024" is not a whole number from 0 to 1023'),
    (["status", "--node", "-1"], "node"),
    (["row", "t", "1", "--node", "0"], "row: has no use for --node"),
])
def test_a_wrong_word_ends_in_2_and_one_sentence(args, words):
    got = psctl(*args)
    assert (got.returncode, got.stdout) == (2, "")
    assert words in got.stderr and got.stderr.startswith("psctl: ") and got.stderr.count("\n") == 1


def complete(script, *words):
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in ("psctl", *words))
    got = subprocess.run(["bash", "-c", f'source "$1"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _psctl; printf "%s\\n" "${{COMPREPLY[@]}}"',
                          "bash", script], capture_output=True, text=True, timeout=60)
    assert (got.returncode, got.stderr) == (0, "")
    return set(got.stdout.split())


def test_bash_completes_commands_settings_values_and_files(tmp_path):
    script = tmp_path / "psctl.bash"
    script.write_text(psctl("completion", "bash").stdout)
    (tmp_path / "data").mkdir()
    assert complete(script, "") == set(commands())
    assert complete(script, "stat") == {"status"}
    assert complete(script, "--server", "x:1", "--json", "wor") == {"workers"}
    watched = complete(script, "watch", "")
    assert watched == {c["name"] for c in json.loads(psctl("help", "-o", "json").stdout)["commands"] if c["repeatable"]}
    assert {"status", "why", "doctor"} <= watched and not {"watch", "top", "drop", "checkpoint", "verify", "help"} & watched
    assert complete(script, "help", "ch") == {"checkpoint", "checkpoints"}
    assert complete(script, "status", "--no") == {"--node"}
    assert complete(script, "row", "--no") == set()
    assert complete(script, "status", "-o", "") == complete(script, "status", "--output", "") == {"text", "wide", "json"}
    assert complete(script, "export", "--format", "n") == {"npy"}
    assert complete(script, "verify", f"{tmp_path}/da") == complete(script, "restore", "--to", f"{tmp_path}/da") == {f"{tmp_path}/data"}
    assert complete(script, "status", "--server", "") == set()
    for name in commands():  # each setting that help shows is offered
        shown = set(re.findall(r"^  (--[a-z-]+)", psctl("help", name).stdout, re.M))
        assert shown - {"--version"} == complete(script, name, "--"), name


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_reads_its_completion(tmp_path):
    script = tmp_path / "_psctl"
    script.write_text(psctl("completion", "zsh").stdout)
    got = subprocess.run(["zsh", "-f", "-c", "_arguments() { case $1 in -C) state=words line=(row);; *) print -rl -- \"$@\";; esac }\n"
                          "_psctl_test() { . \"$1\" }\n_psctl_test \"$1\"", "zsh", script], capture_output=True, text=True, timeout=60)
    assert (got.returncode, got.stderr) == (0, "")
    assert any(line.startswith("--server[a node of the cluster") and line.endswith("]:HOST\\:PORT,...: ") for line in got.stdout.splitlines())
    assert script.read_text().startswith("#compdef psctl\n")


# --- forms of output ---


@pytest.fixture
def psd_with_tables(start_psd):
    psd = start_psd("--shards", "1")
    with psd.connect() as client:
        client.table(name="criteo/emb", dim=4)
        for name in ["bot.0.weight", "bot.0.bias", "top.0.weight"]:
            client.table(name=f"criteo/{name}", kind=wire.DENSE, dim=16, n_floats=64)
        client.table(name="other/top.0.weight", kind=wire.DENSE, dim=16, n_floats=64)
        assert client.join(job="criteo").status == 0
        assert client.push([1], floats(1, 2, 3, 4), table=client.table(name="criteo/emb", dim=4).number(3)).status == 0
    eventually(lambda: psd.stats()["totals"]["rows"] == 1)
    return psd


def test_dense_tables_of_a_job_are_one_line(psd_with_tables):
    server = ("--server", f"127.0.0.1:{psd_with_tables.port}")
    lines = psctl("tables", *server).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["TABLE", "criteo/emb", "criteo", "other/top.0.weight"]
    assert lines[2].startswith("criteo (3 dense) ")
    wide = psctl("tables", "-o", "wide", *server).stdout.splitlines()
    assert [line.split()[0] for line in wide[1:]] == ["criteo/emb", "criteo/bot.0.weight", "criteo/bot.0.bias", "criteo/top.0.weight",
                                                      "other/top.0.weight"]
    assert len(json.loads(psctl("tables", "-ojson", *server).stdout)["tables"]) == 5
    assert psctl("tables", "-o=json", *server).stdout == psctl("tables", "--json", *server).stdout


@pytest.mark.parametrize("command", ["status", "tables", "workers", "jobs"])
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fold_to_the_width(psd_with_tables, command, width):
    server = ("--server", f"127.0.0.1:{psd_with_tables.port}")
    env = {**os.environ, "COLUMNS": str(width)}
    folded = psctl(command, *server, env=env).stdout
    grid = [line for line in folded.splitlines() if not re.match(r"(psd|pages|rows|workers|refused|checkpoints|disk|job|stale)", line)]
    assert grid and max(map(len, grid)) <= width, folded
    if width == 80 and command == "tables":
        assert re.search(r"^\d+ columns more: -o wide$", folded, re.M) and "NOT ADMITTED" not in folded and "criteo/emb" in folded
    assert "columns more" not in psctl(command, "-o", "wide", *server, env=env).stdout
    assert "columns more" not in psctl(command, *server).stdout  # no terminal, no width: all


def at_a_terminal(*args, **env):
    out, inner = pty.openpty()
    child = subprocess.Popen([str(BIN / "psctl"), *args], stdout=inner, stdin=subprocess.DEVNULL,
                             env={**{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}, "TERM": "xterm", **env})
    os.close(inner)
    text = b""
    try:
        while chunk := os.read(out, 65536):
            text += chunk
    except OSError:  # its end
        pass
    os.close(out)
    assert child.wait(timeout=60) == 0
    return text.decode()


def test_colours_are_for_terminals_and_no_color_switches_them_off(psd_with_tables):
    args = ("status", "--server", f"127.0.0.1:{psd_with_tables.port}")
    assert "\033[32mready\033[0m" in at_a_terminal(*args)
    assert "\033" not in at_a_terminal(*args, NO_COLOR="1")
    assert "\033" not in at_a_terminal(*args, TERM="dumb")
    assert "\033" not in psctl(*args).stdout
