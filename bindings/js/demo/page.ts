// What the page of `scripts/bindings demo` looks like and can do, without toolbridge.

/** The question that a person is asked. */
interface Question {
  readonly text: string;
  readonly signal: AbortSignal;
}

interface Battery {
  readonly level: number;
  readonly charging: boolean;
}

/** The most lines that a list on the page shows. */
const LINES = 6;

/** Returns where to join. */
export async function join(): Promise<{ url: string; token: string }> {
  const response = await fetch('/join', { method: 'POST' });
  if (!response.ok) throw new Error(`the demo's server answered ${response.status}`);
  return (await response.json()) as { url: string; token: string };
}

/** Asks a person in a dialog, which closes if the question is withdrawn. */
export function ask({ text, signal }: Question): Promise<boolean> {
  const dialog = element<HTMLTemplateElement>('question').content.firstElementChild!.cloneNode(true) as HTMLDialogElement;
  dialog.querySelector('p')!.textContent = text; // as text: it comes from another participant
  document.body.append(dialog);
  return new Promise((resolve) => {
    signal.addEventListener('abort', () => dialog.close());
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'allow');
    });
    dialog.showModal();
  });
}

export const page = {
  lamp(on: boolean): { on: boolean } {
    element('lamp').classList.toggle('on', on);
    element('lamp-state').textContent = on ? 'on' : 'off';
    return { on };
  },

  async battery(): Promise<Battery | undefined> {
    const read: unknown = Reflect.get(navigator, 'getBattery');
    if (typeof read !== 'function') return undefined;
    const battery = (await read.call(navigator)) as Battery;
    element('battery').textContent = `${Math.round(battery.level * 100)} %${battery.charging ? ', charging' : ''}`;
    return battery;
  },

  /** Shows it on the page, and also as a notification of the system if the user allows those. */
  async notify(text: string): Promise<{ shown: 'page' | 'system' }> {
    add('notifications', text);
    if (typeof Notification !== 'function') return { shown: 'page' };
    if ((await Notification.requestPermission()) !== 'granted') return { shown: 'page' };
    new Notification('toolbridge demo', { body: text });
    return { shown: 'system' };
  },

  assistant(identity: string | undefined): void {
    element('state').textContent = identity === undefined ? 'waiting for the assistant' : `connected to ${identity}`;
    document.body.classList.toggle('bound', identity !== undefined);
  },

  log(line: string): void {
    add('log', line);
  },
};

function add(list: string, text: string): void {
  const item = document.createElement('li');
  item.textContent = text;
  element(list).append(item);
  while (element(list).children.length > LINES) element(list).firstElementChild!.remove();
}

function element<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  return document.getElementById(id) as Kind;
}
