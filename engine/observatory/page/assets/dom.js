// Elements. Text becomes text: nothing in this page is ever parsed as HTML.

// h makes an element. Attributes that are null, undefined or false are left out; on… are listeners.
export function h(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) e.addEventListener(name.slice(2), value);
    else e.setAttribute(name, value === true ? '' : value);
  }
  append(e, children);
  return e;
}

// shown is text in which characters are named that nobody sees: control characters, and those that
// turn the order of what follows, by which one name looks like another.
const shown = (text) => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g,
  (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);

function append(e, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    e.append(child instanceof Node ? child : shown(String(child)));
  }
}

export function replace(e, ...children) {
  e.replaceChildren();
  append(e, children);
  return e;
}

// setText changes nothing where nothing is new, so that selections stay and nothing is announced twice.
export function setText(e, raw) {
  const text = shown(raw);
  if (e.textContent !== text) e.textContent = text;
}

export const badge = (status, text) => h('span', { class: 'badge', 'data-status': status }, text ?? status);

// table makes a table that can be updated in place. A column has a title and cell(row), which returns text or
// elements, and perhaps num: true for numbers and same(row), a text that is equal if the cell is.
export function table({ caption, columns, key, empty, rowState }) {
  const body = h('tbody', { role: 'rowgroup' });
  const element = h('div', { class: 'scroll', role: 'region', 'aria-label': caption, tabindex: '0' },
    h('table', { role: 'table' },
      h('caption', { class: 'quiet' }, caption),
      h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
        columns.map((c) => h('th', { scope: 'col', role: 'columnheader', class: c.num ? 'num' : null }, c.title)))),
      body));
  const none = h('p', { class: 'empty' }, empty);
  const rows = new Map();
  const update = (items) => {
    const seen = new Set();
    let at = null;
    for (const item of items) {
      const id = key(item);
      seen.add(id);
      let row = rows.get(id);
      if (!row) {
        row = { element: h('tr', { role: 'row' }), cells: columns.map((c) => ({ element: h('div'), same: undefined })) };
        columns.forEach((c, i) => row.element.append(h('td', { role: 'cell', 'data-label': c.title, class: c.num ? 'num' : null }, row.cells[i].element)));
        rows.set(id, row);
      }
      if (rowState) row.element.dataset.state = rowState(item) ?? '';
      columns.forEach((c, i) => {
        const cell = row.cells[i];
        const content = c.same ? null : c.cell(item);
        const same = c.same ? c.same(item) : content instanceof Node || Array.isArray(content) ? undefined : String(content ?? '–');
        if (same !== undefined && same === cell.same) return;
        cell.same = same;
        replace(cell.element, c.same ? c.cell(item) : content ?? '–');
      });
      const next = at ? at.nextSibling : body.firstChild;
      if (next !== row.element) body.insertBefore(row.element, next);
      at = row.element;
    }
    for (const [id, row] of rows) {
      if (!seen.has(id)) { row.element.remove(); rows.delete(id); }
    }
    element.hidden = items.length === 0;
    none.hidden = items.length > 0;
  };
  update([]);
  none.hidden = true;
  return { element: h('div', { class: 'table' }, element, none), update };
}

// dialog shows a modal dialog and resolves with its returnValue, '' if it was dismissed.
export function dialog(title, ...content) {
  const id = 'dialog-title';
  const before = document.activeElement;
  const d = h('dialog', { 'aria-labelledby': id }, h('form', { method: 'dialog' }, h('h2', { id }, title), content));
  document.body.append(d);
  const closed = new Promise((resolve) => d.addEventListener('close', () => {
    d.remove();
    if (before?.isConnected) before.focus();
    resolve(d.returnValue);
  }));
  d.showModal();
  return { element: d, closed, close: (value = '') => d.close(value) };
}

export const problem = (error) => h('div', { class: 'problem', role: 'alert' }, h('strong', null, error.title ?? 'That did not work.'), ' ', error.message ?? String(error));
