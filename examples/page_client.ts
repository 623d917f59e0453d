// A page whose assistant can switch its lamp and, after a question, delete a photo: over the Room that the page has anyway.
// `npm install toolbridge livekit-client zod`; the token has the attribute `toolbridge.role` with the value `client`.

import { Room } from 'livekit-client';
import { Client, tool, ToolError } from 'toolbridge';
import { z } from 'zod';

const setLamp = tool({
  description: 'Switches the lamp of this page on or off',
  parameters: z.object({ on: z.boolean() }),
  execute: ({ on }) => ({ on: document.body.classList.toggle('lit', on) }),
});
const deletePhoto = tool({
  description: 'Deletes a photo of this page for good',
  parameters: z.object({ title: z.string() }),
  destructive: true, // the person is asked first
  execute: ({ title }) => {
    const photo = document.querySelector(`img[alt="${CSS.escape(title)}"]`);
    if (photo === null) throw new ToolError(`there is no photo "${title}"`, { code: 'no_such_photo' });
    photo.remove();
  },
});

const room = new Room();
new Client(room, { tools: { set_lamp: setLamp, delete_photo: deletePhoto }, consent: ({ text }) => confirm(text) });
const { url, token } = await (await fetch('/token')).json();
await room.connect(url, token);
