"""What a newcomer installs: pins, environment.yml, README, the wheel, and the directions of imports."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import marimo
import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
BUILD_DEPENDENT = re.compile(r"(nvidia|cuda)-.*|triton|.*-jsfetch")  # what a build of torch brings, and browsers only


def platforms():
    """The environments of PEP 508 that the constraints are for."""
    for system, platform, os_name in (
        ("Linux", "linux", "posix"),
        ("Darwin", "darwin", "posix"),
        ("Windows", "win32", "nt"),
    ):
        for python in ("3.11", "3.12", "3.13"):
            yield default_environment() | {
                "platform_system": system,
                "sys_platform": platform,
                "os_name": os_name,
                "python_version": python,
                "python_full_version": f"{python}.9",
            }


PLATFORMS = list(platforms())


def applies(requirement, environment, extra=""):
    return requirement.marker is None or requirement.marker.evaluate(environment | {"extra": extra})


def test_constraints_are_exact_versions_that_anybody_can_install():
    for pin in PINS:
        (one,) = pin.specifier
        assert one.operator == "==", f"{pin} is not an exact version"
        assert Version(one.version).local is None, f"{pin} is a local version, which no index serves"
        assert pin.url is None
    names = [canonicalize_name(pin.name) for pin in PINS]
    assert names == sorted(names)
    for environment in PLATFORMS:
        here = [canonicalize_name(pin.name) for pin in PINS if applies(pin, environment)]
        assert len(here) == len(set(here)), f"two pins of one package on {environment['sys_platform']}"


def test_constraints_agree_with_the_ranges():
    pins = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in PINS}
    for line in [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["jupyter"]]:
        need = Requirement(line)
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), line


def test_constraints_cover_every_dependency_on_every_platform():
    todo = [("qkvlab", extra, place) for extra in ("", "test", "jupyter") for place in range(len(PLATFORMS))]
    seen, missing = set(todo), set()
    while todo:
        name, extra, place = todo.pop()
        try:
            requires = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # another platform's, or an extra that is not installed
            continue
        environment = PLATFORMS[place]
        for need in map(Requirement, requires):
            child = canonicalize_name(need.name)
            if not applies(need, environment, extra) or BUILD_DEPENDENT.fullmatch(child):
                continue
            if not any(canonicalize_name(pin.name) == child and applies(pin, environment) for pin in PINS):
                missing.add(f"{child} (of {name}, {environment['sys_platform']})")
            for step in [(child, "", place), *((child, more, place) for more in need.extras)]:
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
    assert len(seen) > 80 * len(PLATFORMS), "the walk over the dependencies found hardly any"
    assert not missing


def test_environment_yml_equals_pyproject():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["name"] == PROJECT["name"]
    *own, pip = conda["dependencies"]
    assert own == [f"python{PROJECT['requires-python']},<3.14", "pip"]
    assert pip["pip"] == ["-c constraints.txt", *PROJECT["dependencies"], "-e ."]


def test_every_import_is_declared():
    own = {"qkvlab", "tests", "bench", "hatch_build"}
    where = importlib.metadata.packages_distributions()
    base = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    extra = {canonicalize_name(Requirement(line).name) for line in [*EXTRAS["test"], *EXTRAS["jupyter"]]}
    optional = {canonicalize_name(Requirement(line).name) for line in EXTRAS["scale"]}
    transitive = {"pyyaml", "pyarrow", "websockets"}  # in tests only: datasets and marimo bring them
    for folder, allowed in (
        ("qkvlab", base | optional | {"playwright", "jupyterlab"}),
        ("notebooks", base | optional),
        ("tests", base | extra | transitive),
        ("bench", base | extra | transitive | {"model"}),  # of the peer that bench.text is given
    ):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module]
                for name in {name.split(".")[0] for name in names} - own - sys.stdlib_module_names:
                    if (path.parent / f"{name}.py").exists() or (path.parent / name).is_dir():
                        continue  # a neighbour
                    found = {canonicalize_name(dist) for dist in where.get(name, [name])}
                    assert found & allowed, f"{path.relative_to(ROOT)} imports {name}, which {folder}/ may not"


def test_imports_point_one_way():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scientific_half_imports_with_numpy_torch_safetensors_and_tiktoken_alone():
    allowed = {"numpy", "torch", "safetensors", "tiktoken", "regex"}  # the last comes with tiktoken
    refused = {Requirement(line).name for line in [*PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["jupyter"]]}
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("theory", "models", "tasks", "training")
        for path in sorted((ROOT / "qkvlab" / folder).glob("*.py"))
        if path.stem != "__init__"
    ]
    assert len(modules) > 10
    python(
        f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].replace("_", "-") in {refused - allowed - {"scipy", "packaging"}}:
            # torch and tiktoken themselves try some of these and do without; ours may not ask for them
            frame = sys._getframe(1)
            while frame and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if frame and "qkvlab" in frame.f_globals.get("__name__", ""):
                raise AssertionError(frame.f_globals["__name__"] + " imports " + name)
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
for name in {modules}:
    importlib.import_module(name)
"""
    )


def test_importing_qkvlab_is_instant():
    loaded = python("import sys; before = set(sys.modules); import qkvlab; print(*sorted(set(sys.modules) - before))")
    assert loaded.split() == ["qkvlab"]


def test_help_needs_no_torch():
    heavy = {"torch", "numpy", "marimo", "datasets", "plotly"}
    loaded = python(
        "import sys\nfrom qkvlab.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\nprint('LOADED', *sys.modules)"
    ).split("LOADED")[1]
    assert not heavy & set(loaded.split())


def test_mathjax_trap_has_the_address_of_marimos_own_bundle():
    bundle = Path(marimo.__file__).parent / "_static" / "assets"
    wanted = {
        address
        for script in bundle.glob("*.js")
        for address in re.findall(r"https://[^\s\"'`]*mathjax[^\s\"'`]*", script.read_text(encoding="utf-8"))
    }
    trapped = re.findall(r'data-status="ready" src="([^"]+)"', (ROOT / "notebooks" / "head.html").read_text())
    assert wanted and set(trapped) == wanted


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    from hatchling.builders.wheel import WheelBuilder

    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_a_wheel_holds_the_labs_their_data_and_how_to_run_them(wheel):
    names = set(wheel.namelist())
    for folder, inside in (("notebooks", "_notebooks"), ("data", "_data")):
        for path in [*(ROOT / folder).glob("[!.]*"), *(ROOT / folder).glob("jupyter/*.ipynb")]:
            if path.is_file():
                assert f"qkvlab/{inside}/{path.relative_to(ROOT / folder).as_posix()}" in names
    for name in ("pyproject.toml", "constraints.txt"):
        assert wheel.read(f"qkvlab/_notebooks/{name}") == (ROOT / name).read_bytes()
    for path in (ROOT / "qkvlab").rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and "__marimo__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in names


def test_a_wheel_holds_nothing_else_and_stays_small(wheel):
    for name in wheel.namelist():
        assert name.startswith(("qkvlab/", "qkvlab-")), name
        assert "__pycache__" not in name and "__marimo__" not in name, name
    assert sum(info.compress_size for info in wheel.infolist()) < 40e6


README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e . && .venv/bin/qkvlab",
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[test]' && .venv/bin/pytest",
)


def test_readme_gives_the_two_commands_that_ci_runs():
    assert tuple(line for line in README.splitlines() if line.startswith("python3 -m venv .venv && ")) == COMMANDS


def test_readme_lists_the_labs_of_the_course():
    from qkvlab.course.labs import LABS

    rows = re.findall(r"^\| (\d\d) \| (.+?) \| (.+?) \| (.+?) \|$", README, re.MULTILINE)
    assert rows == [
        (f"{lab.number:02d}", lab.title, lab.question, f"{lab.minutes} min" if lab.written else "coming")
        for lab in LABS
    ]


def test_readme_pictures_are_there_and_small():
    pictures = re.findall(r'<img src="([^"]+)"[^>]* alt="[^"]', README)
    assert pictures
    for picture in pictures:
        assert 10_000 < (ROOT / picture).stat().st_size < 300_000
