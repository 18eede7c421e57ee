"""Redirected functions are as before when the context ends."""

from tests.campaigns.seams import Seam, nothing, patched


class Base:
    def inherited(self) -> str:
        return "real"


class Derived(Base):
    def own(self) -> str:
        return "real"


def test_a_class_has_its_own_functions_and_no_others_when_its_seams_are_closed() -> None:
    before = dict(vars(Derived))
    seams = [Seam(f"{__name__}:Derived.{name}", nothing) for name in ("inherited", "own", "inherited")]
    with patched(seams):
        assert Derived().inherited() is Derived().own() is None
    assert dict(vars(Derived)) == before
    assert Derived().inherited() == "real"
