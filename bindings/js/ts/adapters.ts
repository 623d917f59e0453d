import { isLiveKitClientRoom, LiveKitClientPort, type LiveKitClientRoom } from './livekit-client.js';
import { isPort, type RoomPort } from './room-port.js';
import { isRtcNodeRoom, RtcNodePort, type RtcNodeRoom } from './rtc-node.js';

/** The `Room` of livekit-client or `@livekit/rtc-node`, or a room of your own. */
export type AnyRoom = LiveKitClientRoom | RtcNodeRoom | RoomPort;

/** @throws TypeError if it is no room, Error if its SDK is too old. */
export function portOf(room: AnyRoom): RoomPort {
  if (typeof room === 'object' && room !== null) {
    if (isPort(room)) return room;
    if (isLiveKitClientRoom(room)) return new LiveKitClientPort(room);
    if (isRtcNodeRoom(room)) return new RtcNodePort(room);
  }
  throw new TypeError('the room must be a Room of livekit-client or @livekit/rtc-node');
}
