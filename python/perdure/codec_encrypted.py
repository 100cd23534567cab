"""`EncryptedPayloads`: payloads stored under authenticated encryption, AES-256-GCM (R42). Needs `perdure[crypto]`.

Stored is `{"$enc":{"v":1,"kid":…,"data":…}}`, data being base64 of a random nonce of 96 bits and the sealed JSON. What is
authenticated beside it is the run, what the payload is and of which step or hook, and the key id: a ciphertext copied to
another place is refused there.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from perdure.codec import PayloadPlace
from perdure.errors import PayloadCodecFailed

__all__ = ["EncryptedPayloads"]

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    kid: str
    data: str


class _Stored(msgspec.Struct, rename={"enc": "$enc"}, forbid_unknown_fields=True):
    enc: _Sealed


_STORED: Final = msgspec.json.Decoder(_Stored)


class EncryptedPayloads:
    """A `PayloadCodec` over a ring of keys: the last one encrypts, every one decrypts.

    `keys` is key id → 32 bytes. To rotate, add a key at the end and keep the old ones while runs under them are stored.
    One key is good for 2^32 payloads. `read_plain=True` also reads what was stored before encryption began; whoever can
    write to the store could then put plain payloads there, so set it for the time of the change only.

    Raises `ImportError` without the `cryptography` package, `ValueError` for an empty ring, a blank id or a key that is not
    32 bytes long.
    """

    def __init__(self, keys: Mapping[str, bytes], *, read_plain: bool = False) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not keys:
            raise ValueError('EncryptedPayloads needs a key: {"2026-01": EncryptedPayloads.generate_key()}')
        ring: Mapping[Any, Any] = keys
        for kid, key in ring.items():
            if not isinstance(kid, str) or not kid.strip():
                raise ValueError(f"the id of a key is a text that is not blank, not {kid!r}")
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise ValueError(
                    f"key {kid!r} must be {_KEY_BYTES} bytes, as EncryptedPayloads.generate_key() makes them"
                )
        self._ring = {kid: AESGCM(key) for kid, key in keys.items()}
        self._newest = list(keys)[-1]
        self._read_plain = read_plain

    @staticmethod
    def generate_key() -> bytes:
        """A new random key."""
        return os.urandom(_KEY_BYTES)

    def encode(self, payload: bytes, place: PayloadPlace) -> bytes:
        """The payload sealed under the newest key."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ring[self._newest].encrypt(nonce, payload, _bound(self._newest, place))
        return msgspec.json.encode(_Stored(_Sealed(1, self._newest, b64encode(sealed).decode("ascii"))))

    def decode(self, stored: bytes, place: PayloadPlace) -> bytes:
        """The payload. Raises `PayloadCodecFailed` for an unknown key and for what does not authenticate."""
        from cryptography.exceptions import InvalidTag

        try:
            sealed = _STORED.decode(stored).enc
            data = b64decode(sealed.data, validate=True)
        except (msgspec.MsgspecError, ValueError):
            if self._read_plain:
                return stored
            raise self._failed(place, "it is not stored as encrypted") from None
        key = self._ring.get(sealed.kid)
        if key is None or sealed.v != 1:
            raise self._failed(
                place, f"no key of the ring is called {sealed.kid!r}" if key is None else "its form is newer"
            )
        try:
            return key.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(sealed.kid, place))
        except (InvalidTag, ValueError):
            reason = "it does not authenticate: another key, altered, or moved from another place"
            raise self._failed(place, reason) from None

    @staticmethod
    def _failed(place: PayloadPlace, reason: str) -> PayloadCodecFailed:
        return PayloadCodecFailed("decode", str(place), reason)

    def __repr__(self) -> str:
        return f"<EncryptedPayloads: {', '.join(self._ring)}>"

    def __reduce__(self) -> str:
        raise TypeError("EncryptedPayloads holds keys and does not pickle; make one in each process")


def _bound(kid: str, place: PayloadPlace) -> bytes:
    """What a ciphertext is bound to. Each part carries its length, so no two places give the same bytes."""
    parts = ("perdure.enc.v1", kid, place.run_id, place.kind, place.subject)
    return b"".join(b"%d/%s" % (len(part.encode()), part.encode()) for part in parts)
