"""A test of an agent of your own, without a network: the model plays a script, the store is in memory."""

import asyncio

from holdfast import AIAgent, SessionDB, errors, model


def test_a_provider_that_fails_costs_no_message() -> None:
    script = model.ScriptedModel(["Good day.", errors.KeyRefused("The key was refused.")])
    with SessionDB(":memory:") as db:
        agent = AIAgent(script, db=db, session_id="talk")
        assert asyncio.run(agent.run_conversation("Hello")).final_response == "Good day."
        result = asyncio.run(agent.run_conversation("Are you there?"))
        assert (result.failed, result.error) == (True, "The key was refused.")
        assert [each.role for each in db.transcript("talk")] == ["user", "assistant", "user"]
        assert len(script.requests[1].messages) == 3  # what the model was asked with


test_a_provider_that_fails_costs_no_message()  # pytest calls it by itself
print("passed")
