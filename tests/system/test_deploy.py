"""Installation, units and samples."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import BIN, ROOT

UNITS = ["psd.service", "psd@.service", "psworker@.service", "psserve@.service"]


def run(*args, **more):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **more)


@pytest.fixture
def install(tmp_path):
    def install(prefix="/usr", bin=BIN):
        got = run(ROOT / "deploy/install.sh", bin, tmp_path / "root", prefix)
        assert got.returncode == 0, got.stderr
        return tmp_path / "root"

    return install


def test_install_puts_everything_below_destdir(install):
    root = install("/opt/psd")
    for program in ["psd", "psworker", "psctl"]:
        got = run(root / "opt/psd/bin" / program, "--version")
        assert (got.returncode, got.stdout) == (0, f"{program} 0.1.0\n")
        assert (root / f"opt/psd/share/man/man1/{program}.1").stat().st_size > 500
    unit = (root / "opt/psd/lib/systemd/system/psd.service").read_text()
    assert "ExecStart=/opt/psd/bin/psd --config /etc/psd/psd.conf\n" in unit
    assert {p.name for p in root.iterdir()} == {"opt", "etc"}


@pytest.mark.parametrize("prefix, zsh", [("/usr", "vendor-completions"), ("/usr/local", "site-functions")])
def test_completions_are_installed_for_both_shells(install, prefix, zsh):
    share = install(prefix) / prefix[1:] / "share"
    for shell, path in [("bash", "bash-completion/completions/psctl"), ("zsh", f"zsh/{zsh}/_psctl")]:
        assert (share / path).read_text() == run(BIN / "psctl", "completion", shell).stdout
    listed = (ROOT / "deploy/debian/psctl.install").read_text()
    assert "usr/share/bash-completion/completions/psctl\n" in listed and "usr/share/zsh/vendor-completions/_psctl\n" in listed


PAGES = ["psd.1", "psworker.1", "psctl.1", "psbench.1", "psd.conf.5", "psworker.conf.5", "psd-concepts.7"]


@pytest.mark.parametrize("page", PAGES)
def test_a_man_page_is_installed_and_groff_has_nothing_to_say(install, page):
    path = install() / f"usr/share/man/man{page[-1]}" / page
    if page == "psbench.1" and not (BIN / "psbench").exists():
        pytest.skip("psbench is not built in this folder")
    text = path.read_text()
    assert not [line for line in text.splitlines() if line.startswith("@")], "a part that man.sh has not replaced"
    assert shutil.which("groff"), "groff is missing: apt-get install groff-base"
    got = run("groff", "-ww", "-man", "-Tutf8", path)
    assert (got.returncode, got.stderr) == (0, "")
    heads = [line[4:] for line in text.splitlines() if line.startswith(".SH ")]
    wanted = {"1": ["OPTIONS", "EXAMPLES", "EXIT STATUS"], "5": ["SETTINGS", "EXAMPLES", "FILES", "EXIT STATUS"], "7": []}
    assert [head for head in ["NAME", *wanted[page[-1]], "SEE ALSO"] if head not in heads] == []


@pytest.mark.parametrize("program", ["psd", "psworker", "psctl"])
def test_a_man_page_has_every_option(install, program):
    text = (install() / f"usr/share/man/man1/{program}.1").read_text()
    options = set(re.findall(r"^  --([a-z0-9-]+)", run(BIN / program, *(["help", "all"] if program == "psctl" else ["--help"])).stdout, re.M))
    assert len(options) > 10
    assert options - set(re.findall(r"^\.B --([a-z0-9-]+)", text.replace("\\-", "-"), re.M)) == set()


def test_the_plug_in_for_gpus_is_installed_where_it_was_built(install, tmp_path):
    built = tmp_path / "bin"
    built.mkdir()
    for program in ["psd", "psworker", "psctl"]:
        (built / program).symlink_to(BIN / program)
    assert not (install("/opt/none", built) / "opt/none/lib/psd").exists()
    (built / "psworker_cuda.so").write_text("a plug-in")
    assert (install("/opt/psd", built) / "opt/psd/lib/psd/psworker_cuda.so").read_text() == "a plug-in"


def test_install_leaves_an_operators_configuration_alone(install):
    root = install()
    conf = root / "etc/psd/psd.conf"
    install()
    assert not (root / "etc/psd/psd.conf.new").exists()
    conf.write_text("listen = 127.0.0.1:1\n")
    install()
    assert conf.read_text() == "listen = 127.0.0.1:1\n"
    assert (root / "etc/psd/psd.conf.new").read_text() == (ROOT / "deploy/psd.conf").read_text()


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_about_the_units(install, tmp_path, unit):
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing: apt-get install systemd"
    root = install()
    text = (root / "usr/lib/systemd/system" / unit).read_text()
    path = tmp_path / unit
    path.write_text(text.replace("ExecStart=/usr/bin/", f"ExecStart={root}/usr/bin/"))
    got = run("systemd-analyze", "verify", "--man=no", path)
    assert (got.returncode, got.stdout, got.stderr) == (0, "", "")
    got = run("systemd-analyze", "security", "--offline=true", "--threshold=15", path)
    assert got.returncode == 0, got.stdout
    assert "Type=notify\n" in text and "WatchdogSec=" in text and ("StateDirectory=" in text or unit == "psserve@.service")


def settings_of(text):
    """Of a unit or a settings file: what each section says of each name, the last time that it does."""
    values, section = {}, None
    for line in text.splitlines():
        if head := re.fullmatch(r"\[(\w+)\]", line):
            section = head[1]
        elif line and line[0] not in "#;":
            name, value = line.split("=", 1)
            values[section, name.strip()] = value.strip()
    return values


@pytest.mark.parametrize("unit,statuses,tries", [("psd.service", {"2"}, {"IntervalSec": "0"}),
                                                 ("psd@.service", {"2"}, {"IntervalSec": "0"}),
                                                 ("psworker@.service", {"2", "3"}, {"IntervalSec": "5min", "Burst": "30"}),
                                                 ("psserve@.service", {"2"}, {"IntervalSec": "0"})])
def test_systemd_starts_again_what_may_mend_itself_and_nothing_else(install, unit, statuses, tries):
    """A node for as long as it takes: its disk may be full for hours. Neither what is wrong with the settings, nor a job that is over."""
    is_set = settings_of((install() / "usr/lib/systemd/system" / unit).read_text())
    assert is_set["Service", "Restart"] == "on-failure" and is_set["Service", "RestartSec"] == "1s"
    assert set(is_set["Service", "RestartPreventExitStatus"].split()) == statuses
    assert {name[10:]: value for (_, name), value in is_set.items() if name.startswith("StartLimit")} == tries
    assert all(section == "Unit" for section, name in is_set if name.startswith("StartLimit")), "systemd reads it there alone"


def test_a_node_of_several_differs_from_a_node_alone_in_its_name_and_places():
    one, several = (settings_of((ROOT / "deploy" / unit).read_text()) for unit in ("psd.service", "psd@.service"))
    assert {name for section, name in several if several[section, name] != one.get((section, name))} == \
        {"Description", "ExecStart", "StateDirectory", "WorkingDirectory"}
    assert set(one) == set(several)


def test_exit_statuses_are_those_that_the_units_count_on(tmp_path):
    """2 for settings that are wrong; another one for an address that this machine does not have yet (192.0.2.1: RFC 5737)."""
    (tmp_path / "bad.conf").write_text("[node]\nlissten = 127.0.0.1:0\n")
    for program in [["psd"], ["psworker", "train"]]:
        assert run(BIN / program[0], *program[1:], "--config", tmp_path / "bad.conf").returncode == 2
    away = run(BIN / "psd", "--listen", "192.0.2.1:7070", "--insecure", "--http", "off", cwd=tmp_path)
    assert (away.returncode, "cannot listen on 192.0.2.1:7070" in away.stderr) == (1, True), away.stderr


def test_the_installed_node_listens_to_its_own_machine_alone_and_keeps_its_data(install):
    is_set = settings_of((install() / "etc/psd/psd.conf").read_text())
    assert is_set["node", "listen"] == "127.0.0.1:7070" and is_set["node", "http"] == "127.0.0.1:7071"
    assert is_set["cluster", "insecure"] == "no" and is_set["data", "data-dir"] == "/var/lib/psd"


def test_the_samples_are_what_the_programs_print(tmp_path):
    got = run(ROOT / "deploy/samples.sh", BIN, tmp_path)
    assert got.returncode == 0, got.stderr
    for name in ["psd.conf", "psworker.conf"]:
        assert (tmp_path / name).read_text() == (ROOT / "deploy" / name).read_text(), \
            f"deploy/{name} is stale: run deploy/samples.sh build/release/bin"


def test_the_samples_are_read_back_as_they_are(tmp_path):
    for args, name in [(["psd"], "psd.conf"), (["psworker", "train"], "psworker.conf")]:
        path = ROOT / "deploy" / name
        got = run(BIN / args[0], *args[1:], "--config", path, "--print-config", cwd=tmp_path)
        assert (got.returncode, got.stdout) == (0, path.read_text())
    got = run(BIN / "psd", "--config", ROOT / "deploy/psd.conf", "--check", cwd=tmp_path)
    assert (got.returncode, got.stdout) == (0, "psd: the settings are fine: node 0 of 1, TLS off, data in /var/lib/psd\n"), got.stderr


def readelf(path, flag):
    got = run("readelf", "-W", flag, path, env={**os.environ, "LC_ALL": "C"})
    assert got.returncode == 0, got.stderr
    return got.stdout


@pytest.mark.parametrize("program", ["psd", "psworker", "psctl", "psbench"])
def test_a_program_is_built_as_debian_builds_them(program):
    """PIE, full RELRO, stack protector, FORTIFY, CET, no executable stack: as blhc and checksec would look for."""
    path = BIN / program
    if program == "psbench" and not path.exists():
        pytest.skip("psbench is not built in this folder")
    symbols = readelf(path, "--dyn-syms")
    if "__asan_init" in symbols or "__tsan_init" in symbols:
        pytest.skip("sanitizers watch over this build instead")
    head, dynamic, segments, notes = (readelf(path, flag) for flag in ("-h", "-d", "-l", "-n"))
    assert re.search(r"Type:\s+DYN", head) and re.search(r"FLAGS_1.*PIE", dynamic), "no PIE"
    assert "GNU_RELRO" in segments and re.search(r"FLAGS_1.*NOW", dynamic), "no full RELRO"
    assert re.search(r"GNU_STACK.* RW +0x", segments), "an executable stack"
    assert not re.search(r"RPATH|RUNPATH|TEXTREL", dynamic)
    assert "__stack_chk_fail" in symbols, "no stack protector"
    assert re.search(r"__(v?snprintf|memcpy|v?fprintf)_chk", symbols), "no FORTIFY"
    # Of CET, Linux gives programs the shadow stack. crti.o of Debian 12 has no endbr64, so the file is not marked IBT; its code is ready.
    assert "SHSTK" in notes and path.read_bytes().count(b"\xf3\x0f\x1e\xfa") > 100, "no CET"


def test_make_install_takes_this_way():
    assert "deploy/install.sh" in (pathlib.Path(ROOT) / "Makefile").read_text()
