"""The options of a room whose data is encrypted end to end, if E2EE_KEY in the environment has its shared key, and E2EE_SALT
another salt than the SDK's."""

import os

from livekit import rtc


def options():
    key = os.environ.get("E2EE_KEY")
    if key is None:
        return rtc.RoomOptions()
    salt = {"ratchet_salt": os.environ["E2EE_SALT"].encode()} if "E2EE_SALT" in os.environ else {}
    provider = rtc.KeyProviderOptions(shared_key=key.encode(), **salt)
    return rtc.RoomOptions(encryption=rtc.E2EEOptions(key_provider_options=provider))
