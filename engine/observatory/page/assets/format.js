import { h } from './dom.js';

const numbers = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const rates = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

// What is not known is a dash, never 0.
const unknown = '–';

export const count = (n) => (typeof n === 'number' ? numbers.format(n) : unknown);
export const rate = (n) => (typeof n === 'number' ? rates.format(n) : unknown);

export function age(seconds) {
  if (typeof seconds !== 'number') return unknown;
  const s = Math.max(0, seconds);
  if (s < 1) return '<1 s';
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// brief is for times that may be short.
export const brief = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : seconds < 60 ? `${rates.format(seconds)} s` : age(seconds));

const two = (n) => String(n).padStart(2, '0');

export function clock(text) {
  const t = new Date(text);
  if (!text || Number.isNaN(t.getTime())) return unknown;
  const day = `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
  return `${day} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

// when is a moment in the visitor's time zone; its title has the server's words.
export function when(text) {
  if (!text) return unknown;
  return h('time', { datetime: text, title: text }, clock(text));
}

// hidden stands for what only some may see.
export const hidden = '[hidden]';

// found is a link to what has the same key or stream. What only some may see is none.
export const found = (text, href, title, length = 40) => (text === hidden
  ? h('span', { class: 'quiet', title: 'A token of role operate shows it.' }, text)
  : h('a', { class: 'mono', href, title }, short(text, length)));

export const short = (text, length = 90) => (text && text.length > length ? `${text.slice(0, length - 1)}…` : text || '');

export const plural = (n, one, many = `${one}s`) => `${numbers.format(n)} ${n === 1 ? one : many}`;

// needed is what a dead letter waits for that older builds couldn't read.
export const needed = (needs) => (needs.startsWith('stored:') ? `a build that reads ${needs.slice('stored:'.length)}, which its handler loads` : `a build that reads ${needs}`);

// query is a part of a hash or of an API's address; what is empty is left out.
export function query(values) {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const v of Array.isArray(value) ? value : [value]) {
      if (v !== '' && v !== null && v !== undefined && v !== false) q.append(name, v === true ? 'true' : v);
    }
  }
  const text = q.toString();
  return text && `?${text}`;
}

// pretty makes JSON readable and leaves other text alone.
export function pretty(value) {
  if (typeof value !== 'string') return JSON.stringify(value, null, 2);
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
