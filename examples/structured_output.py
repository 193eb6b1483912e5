"""Structured extraction: the answer is validated, and corrected once by the model if it does not match."""

from dataclasses import dataclass

from holdfast import AIAgent


@dataclass
class Train:
    city: str
    leaves: str
    platform: int


agent = AIAgent("openai/gpt-5", "Extract the train from the text.")
print(agent.run_sync("To Bergen at 9:40, platform 4.", output_type=Train).output)
