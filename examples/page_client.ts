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
new Client(room, { tools: { set_lamp: setLamp, delete_photo: deletePhoto }, consent: ({ text, signal }) => ask(text, signal) });
const { url, token } = await (await fetch('/token')).json();
await room.connect(url, token);

/** Asks the person. It does not stop the script of the page, as `confirm` would: calls are lost after 5 s of that. */
function ask(text: string, signal: AbortSignal): Promise<boolean> {
  const dialog = document.createElement('dialog');
  dialog.innerHTML = '<p></p><form method="dialog"><button value="yes">Allow</button> <button>Refuse</button></form>';
  dialog.querySelector('p')!.textContent = text; // others wrote it
  document.body.append(dialog);
  dialog.showModal();
  signal.addEventListener('abort', () => dialog.close());
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'yes');
    });
  });
}
