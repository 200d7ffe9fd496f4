"""KServe's protocol, version 2, as Triton, OpenVINO Model Server, MLServer and TorchServe speak it."""

from __future__ import annotations

from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ValidationError

from perfharness.bench.spec import CaseSpec
from perfharness.bench.worker.inputs import input_arrays, input_shapes
from perfharness.errors import UsageError
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.targets.http.client import Client, InvalidResponseError, Message
from perfharness.load.targets.http.expect import Received
from perfharness.load.targets.http.protocol import JSON, HttpProtocol
from perfharness.load.targets.http.settings import KSERVE_PATH
from perfharness.model.bench import NO_CASE, TensorSpec

BINARY_HEADER = "Inference-Header-Content-Length"
DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
"""NumPy's names of the datatypes that NumPy has."""

BINARY_ONLY = frozenset({"FP16"})
"""Datatypes without a form in JSON."""


class _Tensor(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(BaseModel):
    name: str
    inputs: list[_Tensor]


class KserveProtocol(HttpProtocol):
    """Inputs as the model's metadata has them, with values of a file or seeded ones."""

    ready_path = "/v2/health/ready"
    _inputs: list[_Tensor]

    async def prepare(self, client: Client) -> None:
        """Read the model's metadata."""
        found = KSERVE_PATH.search(self.url.path)
        if found is None:
            raise UsageError(f"{self.url} names no KServe model; give http://HOST/v2/models/NAME")
        self._model = self.url.with_path(self.url.path[: found.end("model")])
        async with client.send(Message("GET", self._model)) as response:
            body = await response.read()
        if response.status != 200:
            raise UsageError(
                f"{self._model} answers {response.status} when asked what inputs the model has: {_text(body)}"
            )
        try:
            self._inputs = _Metadata.model_validate_json(body).inputs
        except ValidationError:
            raise UsageError(f"{self._model} answers with no metadata of a KServe model: {_text(body)}") from None
        unknown = sorted({one.datatype for one in self._inputs} - set(DTYPES))
        if unknown:
            raise UsageError(
                f"{self._model} takes {unknown[0]}, for which no inputs can be made; send a whole request instead, "
                'with protocol = "plain" and body'
            )

    def make_message(self, name: str | None, items: int) -> Message:
        """Inputs for that many items."""
        specs = [
            TensorSpec(
                name=one.name,
                shape=tuple(None if size < 0 else size for size in one.shape),
                dtype=DTYPES[one.datatype],
            )
            for one in self._inputs
        ]
        case = NO_CASE.model_copy(update={"batch_size": items})
        spec = CaseSpec(
            case=case,
            model=str(self._model),
            inputs=self.settings.shapes,
            input_file=self.settings.input_of(name).input_file,
            seed=self.settings.seed,
        )
        arrays = input_arrays(specs, input_shapes(specs, spec), spec)
        binary = self.settings.binary or any(one.datatype in BINARY_ONLY for one in self._inputs)
        url = self._model / "infer"
        parameters = dict(self.settings.parameters)
        if not binary:
            inputs = [
                {**_head(one, arrays[one.name]), "data": arrays[one.name].ravel().tolist()} for one in self._inputs
            ]
            content = {"inputs": inputs, **({"parameters": parameters} if parameters else {})}
            return Message("POST", url, orjson.dumps(content), {"Content-Type": JSON})
        raw = [np.ascontiguousarray(arrays[one.name]).astype(arrays[one.name].dtype.newbyteorder("<")).tobytes()
               for one in self._inputs]  # fmt: skip
        inputs = [
            {**_head(one, arrays[one.name]), "parameters": {"binary_data_size": len(values)}}
            for one, values in zip(self._inputs, raw, strict=True)
        ]
        head = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}})
        headers = {"Content-Type": "application/octet-stream", BINARY_HEADER: str(len(head))}
        return Message("POST", url, b"".join([head, *raw]), headers)

    async def read(self, response: aiohttp.ClientResponse, answer: Answer, request: LoadRequest) -> Received:
        """What is compared is the JSON, without the bytes behind it."""
        received = await super().read(response, answer, request)
        length = response.headers.get(BINARY_HEADER)
        body = received.body if length is None else received.body[: int(length)]
        try:
            content = orjson.loads(body)
            outputs = content["outputs"]
            sizes = [one.get("parameters", {}).get("binary_data_size", 0) for one in outputs]
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise InvalidResponseError(f"no answer of KServe v2: {_text(body)}") from None
        if length is not None and len(body) + sum(sizes) != len(received.body):
            raise InvalidResponseError(
                f"{len(received.body) - len(body)} bytes follow the JSON, which says {sum(sizes)}"
            )
        return Received(received.status, body)


def _head(tensor: _Tensor, array: npt.NDArray[Any]) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape)}


def _text(body: bytes) -> str:
    return repr(body[:120].decode(errors="replace"))
