// The form above a list. What it chooses stands in the address, so that it can be kept, shared and gone back from.
import { h } from './dom.js';
import { query } from './format.js';

const local = (iso) => {
  const t = new Date(iso);
  if (!iso || Number.isNaN(t.getTime())) return '';
  return new Date(t.getTime() - t.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
};

// search makes a form of fields: {name, title, type, options, wide}; more are those that are rarely needed.
export function search(path, params, fields, more) {
  const inputs = [];
  const field = (f) => {
    const id = `field-${f.name}`;
    if (f.type === 'choices') {
      const chosen = params.getAll(f.name);
      const boxes = f.options.map((o) => {
        const box = h('input', { type: 'checkbox', id: `${id}-${o}`, value: o });
        box.checked = chosen.includes(o);
        return box;
      });
      inputs.push([f.name, () => boxes.filter((b) => b.checked).map((b) => b.value)]);
      return h('fieldset', { class: 'choices' }, h('legend', null, f.title), boxes.map((b) => h('label', { for: b.id }, b, ' ', b.value)));
    }
    const value = params.get(f.name) ?? '';
    let input;
    if (f.type === 'select') {
      input = h('select', { id }, h('option', { value: '' }, 'all'), [...new Set([...f.options, value].filter(Boolean))].map((o) => h('option', { value: o }, o)));
      input.value = value;
    } else if (f.type === 'moment') {
      input = h('input', { id, type: 'datetime-local', step: 1, value: local(value) });
    } else if (f.type === 'box') {
      input = h('input', { id, type: 'checkbox' });
      input.checked = value === 'true';
    } else {
      input = h('input', { id, type: 'search', value, placeholder: f.like ?? '', spellcheck: 'false', autocomplete: 'off' });
    }
    inputs.push([f.name, () => {
      if (f.type === 'box') return input.checked;
      if (f.type === 'moment') return input.value && new Date(input.value).toISOString();
      return input.value.trim();
    }]);
    return h('div', { class: f.wide ? 'field wide' : 'field' }, h('label', { for: id }, f.title), input);
  };
  const first = h('div', { class: 'fields' }, fields.map(field));
  const rest = more.length > 0 && h('details', null, h('summary', null, 'More'), h('div', { class: 'fields' }, more.map(field)));
  if (rest) rest.open = more.some((f) => params.has(f.name));
  return h('form', {
    class: 'search', role: 'search',
    onsubmit: (event) => {
      event.preventDefault();
      const address = `#/${path}${query(Object.fromEntries(inputs.map(([name, read]) => [name, read()])))}`;
      if (location.hash === address) dispatchEvent(new HashChangeEvent('hashchange'));
      else location.hash = address;
    },
  }, first, rest, h('div', { class: 'buttons' }, h('button', { type: 'submit', class: 'primary' }, 'Search'), h('a', { class: 'button', href: `#/${path}` }, 'Clear')));
}

// pages are links to what comes next. Each database counts for itself, so each has its own.
export function pages(path, params, next) {
  const following = Object.entries(next ?? {}).sort();
  if (!following.length && !params.has('after')) return null;
  const to = (change) => {
    const p = new URLSearchParams(params);
    p.delete('after');
    for (const [name, value] of Object.entries(change)) p.set(name, value);
    return `#/${path}${p.size ? `?${p}` : ''}`;
  };
  const one = following.length === 1;
  return h('nav', { class: 'pages', 'aria-label': 'Pages' },
    params.has('after') && h('a', { class: 'button', href: to({}) }, 'First page'),
    following.map(([provider, after]) => h('a', { class: 'button', rel: 'next', href: to({ provider, after }) }, one && params.get('provider') ? 'Next page' : `Next page of ${provider}`)));
}

// filterFrom is a filter of the API with what the address has, under the names that the API has for it.
export function filterFrom(params, names) {
  const filter = {};
  for (const [name, field] of Object.entries(names)) if (params.get(name)) filter[field] = params.get(name);
  if (params.getAll('status').length) filter.statuses = params.getAll('status');
  return filter;
}
