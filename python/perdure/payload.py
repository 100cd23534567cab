"""Payloads: Python values to JSON bytes and back, exactly or not at all.

What JSON cannot hold without loss is refused, before anything is written, with the rule and the JSON path
(`$.items[3].price`) and never the value (spec/README "Payloads are exact", R27, R29, R30). Beside the JSON types go
tuples, named tuples, dataclasses, typed dictionaries, enums (by value), `UUID`, `Decimal`, bytes (base64), `date`,
`time`, aware `datetime`, `timedelta` (ISO 8601), sets (in the order of their members' JSON), msgspec structs and
pydantic models; keys keep their order. What comes back is what the annotation says.
"""

from __future__ import annotations

from perdure.payload_decode import decode, decode_as, decoder, reader
from perdure.payload_encode import encode
from perdure.payload_rules import key_path, refusal

__all__ = ["decode", "decode_as", "decoder", "encode", "key_path", "reader", "refusal"]
