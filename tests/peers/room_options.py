"""The options of a room whose data is encrypted end to end, if E2EE_KEY in the environment has its shared key."""

import os

from livekit import rtc


def options():
    key = os.environ.get("E2EE_KEY")
    if key is None:
        return rtc.RoomOptions()
    provider = rtc.KeyProviderOptions(shared_key=key.encode())
    return rtc.RoomOptions(encryption=rtc.E2EEOptions(key_provider_options=provider))
