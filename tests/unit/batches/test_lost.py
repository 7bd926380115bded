"""The share of lines' work of the last hour that was lost."""

from batches.work.policy import HOUR, MINUTE, LostWork


def test_lines_that_ended_within_the_last_hour_count() -> None:
    work = LostWork()
    assert work.part(0.0) == 0.0
    work.add(30.0, 0.0, is_lost=False)
    work.add(10.0, 1.0, is_lost=True)
    assert work.part(2.0) == 0.25
    work.add(60.0, HOUR / 2, is_lost=False)
    assert work.part(HOUR) == 0.1
    assert work.part(HOUR + 1.0) == 0.0
    work.add(60.0, HOUR + 2.0, is_lost=True)
    assert work.part(HOUR + 2.0) == 0.5


def test_memory_is_bounded() -> None:
    work = LostWork()
    for second in range(3 * int(HOUR)):
        work.add(1.0, float(second), is_lost=second % 4 == 0)
    assert work.part(3 * HOUR) == 0.25
    assert len(work._minutes) <= HOUR / MINUTE + 1
