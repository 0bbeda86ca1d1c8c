"""Reading patch files: a fault is told with the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_tree import PATCH, make_series
from tools.errors import UserError
from tools.patching import series
from tools.patching.series import Series

FAULTS = {
    "subject is missing": ("subject: Align sizes\n", "", "'subject' is a required property"),
    "unknown key": ("body: |", "boddy: x\nbody: |", "'boddy' was unexpected"),
    "count is no number": ("count: 1", "count: one", "['count']: 'one' is not of type 'integer'"),
    "count is nought": ("count: 1", "count: 0", "['count']: 0 is less than the minimum of 1"),
    "key given twice": ("subject:", "subject: a\nsubject:", "key 'subject' is given twice"),
    "not YAML": ("files:", "files: [", "not YAML"),
    "path outside exir": ("exir/memory", "../exir/memory", "does not match"),
    "requires what is not there": (
        "body: |",
        "requires: [0007]\nbody: |",
        "0007 is not an earlier",
    ),
    "subject of two lines": ("Align sizes", '"Align\\n sizes"', "['subject']"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_patch_file_is_told_with_file_and_key(fault: str, tmp_path: Path) -> None:
    before, after, message = FAULTS[fault]
    assert before in PATCH
    with pytest.raises(UserError) as caught:
        make_series(tmp_path, p0001_try=PATCH.replace(before, after, 1))
    assert str(caught.value).startswith("0001-try.yml: ")
    assert message in str(caught.value)


def test_two_patches_of_one_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"0001-try.yml: number 0001 is taken by 0001-again.yml"):
        make_series(tmp_path, p0001_try=PATCH, p0001_again=PATCH)


def test_a_file_name_out_of_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is called NNNN-some-words.yml"):
        make_series(tmp_path, p1_Try=PATCH)


def test_no_patches_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no patch files in"):
        series.load(tmp_path)


def test_numbers_are_names_and_not_octal(tmp_path: Path) -> None:
    second = "subject: B\nrequires: [0008]\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    loaded = make_series(tmp_path, p0008_try=PATCH, p0010_more=second)
    assert [patch.number for patch in loaded.patches] == ["0008", "0010"]
    assert loaded.patches[1].requires == ("0008",)


def test_only_wants_what_a_patch_requires(tmp_path: Path) -> None:
    second = "subject: B\nrequires: [0001]\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    loaded = make_series(tmp_path, p0001_try=PATCH, p0002_more=second)
    assert [patch.number for patch in loaded.only(("0001",)).patches] == ["0001"]
    with pytest.raises(UserError, match="0002-more requires 0001"):
        loaded.only(("0002",))
    with pytest.raises(UserError, match="no patch 0009 in the series; it has 0001, 0002"):
        loaded.only(("0009",))


def test_only_names_at_once_all_that_a_patch_requires(tmp_path: Path) -> None:
    second = "subject: B\nrequires: [0001]\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    third = "subject: C\nrequires: [0002]\nbody: c\nfiles: {exir/c.py: {define: [c]}}\n"
    loaded = make_series(tmp_path, p0001_try=PATCH, p0002_more=second, p0003_last=third)
    assert loaded.alone(loaded.patches[2]) == loaded
    with pytest.raises(UserError, match="0003-last requires 0001, 0002: choose that, too"):
        loaded.only(("0003",))


def test_releases_take_what_is_for_them(tmp_path: Path) -> None:
    second = "subject: B\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    loaded = make_series(
        tmp_path,
        p0001_old=PATCH.replace("body", "since: 1.3.1\nbody", 1),
        p0002_merged=second + "requires: [0001]\nsince: 1.4.0\nuntil: 1.5.1\nstate: merged\n",
        p0003_new=second.replace("b.py", "c.py") + "requires: [0002]\nsince: 1.5.1\nstate: sent\n",
    )

    def numbers(chosen: Series) -> list[str]:
        return [patch.number for patch in chosen.patches]

    assert loaded.older_releases == ("1.3.1",)
    assert numbers(loaded.for_release("1.3.1")) == ["0001"]
    assert numbers(loaded.for_release("1.5.0")) == ["0001", "0002"]
    # What 0003 requires is in the release, so it goes alone.
    assert numbers(loaded.for_release("1.5.1")) == ["0001", "0003"]
    assert numbers(loaded.for_release("1.5.1").only(("0001", "0003"))) == ["0001", "0003"]
    assert numbers(loaded.for_main()) == ["0001", "0003"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("state: merged", "['until'] names the release"),
        ("until: 1.6.0", "['until'] names the release"),
        ("state: lost", "['state']: 'lost' is not one of"),
        ("since: '1.4'", "['since']"),
        ("requires: ['0001']\nsince: 1.3.1", "1.3.1 is before 0001"),
    ],
)
def test_a_life_that_cannot_be_is_refused(more: str, message: str, tmp_path: Path) -> None:
    second = "subject: B\nbody: b\nfiles: {exir/b.py: {define: [b]}}\n"
    with pytest.raises(UserError) as caught:
        make_series(tmp_path, p0001_try=PATCH, p0002_more=f"{second}{more}\n")
    assert str(caught.value).startswith("0002-more.yml: ")
    assert message in str(caught.value)


def test_every_patch_of_the_series_says_how_it_was_tested() -> None:
    assert not [patch.name for patch in series.load().patches if not patch.test_plan]
