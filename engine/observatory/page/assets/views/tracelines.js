// The lines of a trace: from each message to what it caused, behind the lists that say the same.
const namespace = 'http://www.w3.org/2000/svg';

function svg(tag, attributes) {
  const e = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

// line goes to the right where there is room, and else down and along the margin.
function line(from, to) {
  const y = to.top + Math.min(to.height / 2, 24);
  if (to.left > from.right) {
    const start = from.top + Math.min(from.height / 2, 24);
    const middle = (from.right + to.left) / 2;
    return `M${from.right} ${start}C${middle} ${start} ${middle} ${y} ${to.left - 6} ${y}`;
  }
  const x = from.left + 8;
  return `M${x} ${from.bottom}V${y - 8}Q${x} ${y} ${x + 8} ${y}H${to.left - 6}`;
}

// draw returns the picture, and what draws it anew; it follows the size of its place by itself.
export function draw(place, signal) {
  const element = svg('svg', { class: 'lines', 'aria-hidden': 'true', focusable: 'false' });

  function redraw() {
    const origin = place.getBoundingClientRect();
    const box = (e) => {
      const r = e.getBoundingClientRect();
      return { left: r.left - origin.left, right: r.right - origin.left, top: r.top - origin.top, bottom: r.bottom - origin.top, height: r.height };
    };
    element.setAttribute('width', place.scrollWidth);
    element.setAttribute('height', place.scrollHeight);
    const all = [];
    for (const card of place.querySelectorAll('li li > .traced')) {
      const cause = card.parentElement.parentElement.closest('li').firstElementChild;
      const crossing = cause.dataset.context !== card.dataset.context && cause.dataset.context && card.dataset.context;
      const to = box(card);
      const kind = crossing ? 'edge crossing' : 'edge';
      all.push(svg('path', { class: kind, d: line(box(cause), to) }));
      const y = to.top + Math.min(to.height / 2, 24);
      all.push(svg('path', { class: `${kind} tip`, d: `M${to.left - 7} ${y - 4}L${to.left} ${y}L${to.left - 7} ${y + 4}z` }));
    }
    element.replaceChildren(...all);
  }

  const seen = new ResizeObserver(redraw);
  seen.observe(place);
  signal.addEventListener('abort', () => seen.disconnect());
  return { element, redraw };
}
