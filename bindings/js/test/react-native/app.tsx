// Compiled, not run: the rooms of React Native apps are accepted, by the types that they see.

import { LiveKitRoom, registerGlobals, useRoomContext } from '@livekit/react-native';
import { Room } from 'livekit-client';
import { useMemo, type ReactElement } from 'react';
import { Assistant, Client, tool } from 'toolbridge';
import { useTools } from 'toolbridge/react';

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Equal<A, B>): void => {};

registerGlobals();

const lamp = tool({ description: 'Switches the lamp', parameters: { type: 'object' }, execute: () => ({ on: true }) });

/** A room of the app's own. */
export function App({ url, token }: { url: string; token: string }): ReactElement {
  const room = useMemo(() => new Room(), []);
  useMemo(() => new Client(room, { tools: { lamp } }), [room]);
  return (
    <LiveKitRoom room={room} serverUrl={url} token={token} connect audio>
      <Lamp />
    </LiveKitRoom>
  );
}

/** The room of the component around it. */
function Lamp(): null {
  const room = useRoomContext();
  same<typeof room, Room>(true);
  new Assistant(room);
  useTools(room, { lamp });
  return null;
}
