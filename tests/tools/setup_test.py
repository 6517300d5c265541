"""tools/setup.sh on machines that are made up by stand-ins for dpkg-query, apt-get, id, sudo, df and nvidia-smi."""

import pathlib
import shutil
import subprocess

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


class Machine:
    """A copy of the scripts in an empty checkout, and a PATH whose first folder holds the stand-ins."""

    def __init__(self, folder):
        self.repo = folder / "checkout"
        self.bin = folder / "bin"
        self.calls = folder / "calls"
        (self.repo / "tools").mkdir(parents=True)
        self.bin.mkdir()
        self.calls.touch()
        for name in ("setup.sh", "requirements.txt", "requirements-test.txt"):
            shutil.copy(TOOLS / name, self.repo / "tools" / name)
        shutil.copytree(TOOLS / "lib", self.repo / "tools" / "lib")
        self.stub("nvidia-smi", "exit 9")
        self.stub("dpkg-query", "printf installed")
        self.stub("apt-get", f'echo "apt-get $*" >>{self.calls}')
        self.stub("cmake", f'echo "cmake $*" >>{self.calls}')
        self.stub("sudo", f'echo "sudo $*" >>{self.calls}; exit 1')

    def stub(self, name, body):
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run(self, *options, **environment):
        result = subprocess.run(
            [str(self.repo / "tools" / "setup.sh"), *options], capture_output=True, text=True, check=False,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.repo), **environment})
        return result.returncode, result.stdout, result.stderr

    def called(self):
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_user_without_sudo_gets_one_line_and_nothing_is_done(machine):
    machine.stub("id", "echo 1000")
    machine.stub("dpkg-query", 'case ${@: -1} in cmake|libaio-dev) exit 1 ;; *) printf installed ;; esac')
    code, out, _ = machine.run()
    assert code == 2
    lines = [line.strip() for line in out.splitlines() if "apt-get" in line]
    assert lines == ["apt-get update && apt-get install -y --no-install-recommends cmake libaio-dev"]
    assert "missing Debian packages: cmake libaio-dev" in out
    assert "missing Python packages in .venv: torch==2.11.0 " in out
    assert machine.called() == ["sudo -n true"]
    assert not (machine.repo / ".venv").exists()


def test_half_installed_package_is_missing(machine):
    machine.stub("id", "echo 1000")
    machine.stub("dpkg-query", "printf unpacked")
    code, out, _ = machine.run()
    assert code == 2
    assert "missing Debian packages: ca-certificates g++ cmake" in out


def test_user_with_sudo_passes_the_proxy_on(machine):
    machine.stub("id", "echo 1000")
    machine.stub("dpkg-query", 'case ${@: -1} in lld) exit 1 ;; *) printf installed ;; esac')
    machine.stub("sudo", f'echo "sudo $*" >>{machine.calls}; case $* in *install*) exit 1 ;; esac')
    code, _, err = machine.run(https_proxy="http://proxy:3128")
    assert code == 1
    assert "Debian packages failed" in err
    assert machine.called() == [
        "sudo -n true",
        "sudo -n env https_proxy=http://proxy:3128 apt-get update",
        "sudo -n env https_proxy=http://proxy:3128 env DEBIAN_FRONTEND=noninteractive "
        "apt-get install -y --no-install-recommends lld",
    ]


def test_full_disk_is_found_before_anything_is_downloaded(machine):
    machine.stub("id", "echo 0")
    machine.stub("df", "echo header; echo 'disk 1 1 300 1 /'")
    code, _, err = machine.run()
    assert code == 3
    assert "this installation needs 4000 MiB free" in err
    assert "found 300 MiB" in err
    assert machine.called() == []


def test_gpu_machine_needs_more(machine):
    machine.stub("id", "echo 0")
    machine.stub("nvidia-smi", "echo 'GPU 0: a card'")
    machine.stub("df", "echo header; echo 'disk 1 1 5000 1 /'")
    code, out, err = machine.run()
    assert code == 3
    assert "GPU found: torch with its CUDA libraries" in out
    assert "needs 10000 MiB free" in err


def test_check_reports_and_downloads_nothing(machine):
    machine.stub("id", "echo 0")
    code, out, _ = machine.run("--check", "--with-tests")
    assert code == 1
    assert "present Debian packages" in out
    assert "missing Python packages in .venv-test: torch==2.11.0 transformers==5.24.0" in out
    assert machine.called() == []


def test_no_usable_python_asks_for_one(machine):
    machine.stub("id", "echo 1000")
    code, out, _ = machine.run(ZINF_PYTHON="/bin/false")
    assert code == 2
    assert "--no-install-recommends python3-venv" in out


def test_wheelhouse_must_exist(machine):
    code, _, err = machine.run("--wheelhouse", "/no/such/folder")
    assert code == 2
    assert "--wheelhouse /no/such/folder: no such folder" in err


def test_pip_failure_shows_the_log(machine, tmp_path):
    machine.stub("id", "echo 0")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    code, _, err = machine.run("--wheelhouse", str(wheels), "--no-build")
    assert code == 1
    assert "torch==2.11.0" in err
    assert "the whole output is in" in err
