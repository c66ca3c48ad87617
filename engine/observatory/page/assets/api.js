// The engine's API, and the token that it may ask for.
import { dialog, h } from './dom.js';

const tokenKey = 'waybill.token';
let token = '';
try { token = sessionStorage.getItem(tokenKey) ?? ''; } catch { /* storage is off */ }

const timeout = 15000;

// APIError is an answer that is no success, in words for people. status 0: there was no answer.
export class APIError extends Error {
  constructor(status, text) {
    super(APIError.words(status, text));
    this.status = status;
    this.title = { 0: 'No connection.', 401: 'The token is missing or wrong.', 403: 'Not allowed.', 404: 'Not found.' }[status] ?? `The engine refused (${status}).`;
  }

  static words(status, text) {
    if (status === 0) return `${text || 'The engine does not answer.'} This page tries again by itself.`;
    if (status === 401) return `${text || ''} Give it with the button “Token”.`.trim();
    if (status >= 500) return `${text || 'It failed.'} The engine’s log says more.`;
    return text || 'It gave no reason.';
  }
}

export const hasToken = () => token !== '';

function setToken(value) {
  token = value;
  try {
    if (value) sessionStorage.setItem(tokenKey, value);
    else sessionStorage.removeItem(tokenKey);
  } catch { /* storage is off: it lasts as long as the page */ }
  document.dispatchEvent(new Event('waybill:token'));
}

// askToken resolves with whether a token was given.
export async function askToken(why) {
  const input = h('input', { type: 'password', id: 'token-input', autocomplete: 'off', spellcheck: 'false', autofocus: true });
  const remember = (event) => {
    event.preventDefault();
    setToken(input.value.trim());
    d.close(token ? 'given' : 'forgotten');
  };
  const d = dialog('Token of the server',
    why && h('p', { class: 'problem' }, why),
    h('p', null, 'It is server.token in the configuration, or one of server.tokens. This tab keeps it until it is closed, and sends it to this server only.'),
    h('label', { for: 'token-input' }, 'Token'), input,
    h('div', { class: 'buttons' },
      h('button', { value: '', formnovalidate: true }, 'Cancel'),
      hasToken() && h('button', { type: 'button', onclick: () => { setToken(''); d.close(); } }, 'Forget it'),
      h('button', { class: 'primary', onclick: remember }, 'Use it')));
  input.addEventListener('keydown', (event) => { if (event.key === 'Enter') remember(event); });
  return (await d.closed) === 'given';
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

async function ask(path, init, signal) {
  const limit = AbortSignal.timeout(timeout);
  try {
    return await fetch(path, { ...init, headers: { ...headers(), ...init?.headers }, signal: signal ? AbortSignal.any([signal, limit]) : limit, cache: 'no-store', credentials: 'same-origin' });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new APIError(0, limit.aborted ? `No answer within ${timeout / 1000} s.` : '');
  }
}

async function refusal(response) {
  let text = '';
  try { text = (await response.json()).error; } catch { /* not the engine’s words */ }
  return new APIError(response.status, typeof text === 'string' ? text : '');
}

export async function get(path, signal) {
  const response = await ask(path, null, signal);
  if (!response.ok) throw await refusal(response);
  const text = await response.text();
  const answer = JSON.parse(text);
  for (const content of ['payload', 'state']) {
    if (typeof answer[content] === 'object') answer[content] = JSON.parse(text, exact)[content];
  }
  return answer;
}

// exact keeps numbers as they were written that JavaScript would round, such as ids of 64 bits: what messages
// carry is shown and not reckoned with.
function exact(name, value, written) {
  return typeof value === 'number' && written?.source && String(value) !== written.source ? JSON.rawJSON(written.source) : value;
}

// post sends a change. It asks for the token if that is what is missing, and then sends it again.
export async function post(path, body) {
  for (;;) {
    const response = await ask(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
    if (response.ok) return response.json();
    const error = await refusal(response);
    if (error.status !== 401 || !(await askToken(hasToken() ? 'The server does not accept this token.' : 'Changes need the token.'))) throw error;
  }
}

// stream reads server-sent events until they end, and calls each(name, data).
export async function stream(path, each, signal) {
  let response;
  try {
    response = await fetch(path, { headers: { ...headers(), Accept: 'text/event-stream' }, signal, cache: 'no-store', credentials: 'same-origin' });
  } catch (e) {
    if (signal.aborted) throw e;
    throw new APIError(0, '');
  }
  if (!response.ok) throw await refusal(response);
  if (!response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
    await response.body?.cancel();
    throw new APIError(404, 'There is no stream.');
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      let name = 'message';
      const data = [];
      for (const line of event.split(/\r?\n/)) {
        if (line.startsWith('event:')) name = line.slice(6).trim();
        else if (line.startsWith('data:')) data.push(line.slice(5));
      }
      if (data.length) each(name, JSON.parse(data.join('\n')));
    }
  }
}
