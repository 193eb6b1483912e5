"""Where a request ends: whatever it raises is one of the protocol's errors, and never a trace."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from acp import exceptions

from holdfast import errors
from holdfast.rpc import frames

logger = logging.getLogger("holdfast.acp")

P = ParamSpec("P")
T = TypeVar("T")

NOT_FOUND = -32002


def answered(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The border of one request: what it raises is one of the protocol's errors."""

    @wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except exceptions.RequestError:
            raise
        except errors.RpcRefused as error:
            raise exceptions.RequestError(error.code, str(error), error.data) from None
        except errors.NoSuchSession as error:
            raise exceptions.RequestError(NOT_FOUND, str(error)) from None
        except errors.InvalidArgument as error:
            code = NOT_FOUND if error.parameter == "session_id" else frames.PARAMS
            raise exceptions.RequestError(code, str(error)) from None
        except errors.Busy as error:
            raise exceptions.RequestError(frames.BUSY, str(error), {"type": "Busy"}) from None
        except errors.HoldfastError as error:
            raise exceptions.RequestError(frames.INTERNAL, str(error), {"type": type(error).__name__}) from None
        except Exception:
            logger.exception("a request failed")
            raise exceptions.RequestError(frames.INTERNAL, "The request failed; the log says more.") from None

    return answer
