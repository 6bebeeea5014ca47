"""How a job's conditions replace each other, and their order and times."""

from gangline.api.meta.conditions import MAX_MESSAGE_LENGTH, find_condition
from gangline.api.meta.objects import Condition
from gangline.operator.model.conditions import set_condition_false, set_condition_true
from unit.operator.builders import NOW, at


def shown(reported: list[Condition]) -> list[str]:
    return [c.type if c.status == "True" else f"({c.type})" for c in reported]


def running_job() -> list[Condition]:
    reported = set_condition_true([], "Created", "JobCreated", "is created", NOW)
    return set_condition_true(reported, "Running", "JobRunning", "is running", at(1))


def test_the_newest_stands_last():
    assert shown(running_job()) == ["Created", "Running"]


def test_running_and_restarting_replace_each_other():
    reported = set_condition_true(running_job(), "Restarting", "JobRestarting", "restarts", at(2))
    assert shown(reported) == ["Created", "Restarting"]
    assert shown(set_condition_true(reported, "Running", "JobRunning", "runs", at(3))) == [
        "Created",
        "Running",
    ]


def test_an_end_makes_running_false_and_takes_restarting_away():
    reported = set_condition_true(running_job(), "Failed", "JobFailed", "why", at(2))
    assert shown(reported) == ["(Running)", "Created", "Failed"]
    assert find_condition(reported, "Running").last_transition_time == at(2)
    restarting = set_condition_true(running_job(), "Restarting", "R", "r", at(2))
    assert shown(set_condition_true(restarting, "Failed", "F", "f", at(3))) == ["Created", "Failed"]


def test_what_holds_already_is_left_alone():
    reported = running_job()
    assert set_condition_true(reported, "Running", "JobRunning", "is running", at(9)) == reported


def test_a_new_message_keeps_the_time_since_which_the_condition_holds():
    reported = set_condition_true(running_job(), "Running", "JobRunning", "still running", at(9))
    running = find_condition(reported, "Running")
    assert (running.last_transition_time, running.last_update_time) == (at(1), at(9))


def test_a_condition_that_comes_back_holds_since_then():
    reported = set_condition_false(running_job(), "Running", "Suspended", "held", at(2))
    reported = set_condition_true(reported, "Running", "JobRunning", "is running", at(5))
    assert find_condition(reported, "Running").last_transition_time == at(5)


def test_missing_condition_is_not_set_to_false():
    assert set_condition_false([], "Running", "Suspended", "held", NOW) == []


def test_what_is_over_stands_before_what_holds():
    assert shown(set_condition_false(running_job(), "Created", "x", "y", at(2))) == [
        "(Created)",
        "Running",
    ]


def test_a_message_is_cut_to_what_the_server_takes():
    (reported,) = set_condition_true([], "Failed", "F", "x" * 100_000, NOW)
    assert len(reported.message) == MAX_MESSAGE_LENGTH
    assert set_condition_true([reported], "Failed", "F", "x" * 100_000, at(1)) == [reported]
