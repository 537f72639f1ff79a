"""The front door `dev`, with a cmake that only notes what it is asked for."""

import os
import shutil
import subprocess

import pytest

from server import ROOT

CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >>"$CALLS"
mkdir -p build
printf '#!/usr/bin/env bash\\necho "$PWD: $*"\\n' >build/expertplex
chmod +x build/expertplex
"""


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "clone").mkdir()
    shutil.copy(ROOT / "dev", tmp_path / "clone" / "dev")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cmake").write_text(CMAKE)
    (tools / "dpkg-query").write_text("#!/bin/sh\necho install ok installed\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return tmp_path / "clone"


def dev(clone, *arguments, cwd=None):
    """(exit code, stdout, stderr, the calls of cmake)"""
    calls = clone.parent / "calls"
    calls.write_text("")
    done = subprocess.run(
        [clone / "dev", *arguments], cwd=cwd or clone, capture_output=True, text=True, timeout=30,
        env={**os.environ, "CALLS": str(calls), "PATH": f"{clone.parent}/tools:{os.environ['PATH']}"})
    return done.returncode, done.stdout, done.stderr, calls.read_text().splitlines()


def test_serve_runs_where_the_caller_is(clone, tmp_path):
    code, out, _, _ = dev(clone, "serve", "--model", "here", cwd=tmp_path)
    assert code == 0 and out == f"{tmp_path}: serve --model here\n"


def test_build_makes_the_binary_and_other_presets_everything(clone):
    assert dev(clone, "build")[3][-1] == "cmake --build build --target expertplex"
    assert dev(clone, "build", "cpu")[3][-1] == "cmake --build build --target expertplex"
    assert dev(clone, "build", "cuda")[3][-1].rstrip() == "cmake --build build-cuda"


def test_a_build_directory_that_cannot_be_written(clone):
    (clone / "build").write_text("not a directory")
    code, _, err, _ = dev(clone, "build")
    assert code == 1
    assert err.splitlines() == [
        f"dev: error: cannot write to {clone}/build; is it another user's?"]
