"""A chat over a websocket: run `uvicorn websocket:app`, connect to /chat/ANY-ID and send messages as text."""

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from holdfast import AIAgent, events


async def chat(socket: WebSocket) -> None:
    await socket.accept()
    async with AIAgent("openai/gpt-5", db="chat/chat.db", session_id=socket.path_params["id"]) as agent:
        async for text in socket.iter_text():
            async for event in agent.stream(text):
                if isinstance(event, events.TextDelta):
                    await socket.send_text(event.text)


app = Starlette(routes=[WebSocketRoute("/chat/{id}", chat)])
