// What an operator can do: what it would change is shown first, and then it is confirmed.
import { post } from './api.js';
import { dialog, h, problem, replace } from './dom.js';
import { count, plural } from './format.js';

const actorKey = 'waybill.actor';

const verbs = {
  retry: { title: 'Retry', path: 'api/outbox/messages/retry', rated: true, limited: true, done: 'due again', text: 'The rows are due again, with their attempts counted from 0.' },
  abandon: { title: 'Abandon', path: 'api/outbox/messages/abandon', done: 'given up', danger: true, text: 'These rows are no longer published, unless they are retried. Later rows of their keys are.' },
  skip: { title: 'Skip', path: 'api/outbox/messages/skip', done: 'skipped', danger: true, text: 'The rows stay abandoned, and later rows of their keys are published.' },
  replay: { title: 'Replay', path: 'api/dead-letters/replay', letters: true, rated: true, limited: true, done: 'marked for replay', text: 'The subscription handles these messages again, each once, in the order of their keys.' },
  discard: { title: 'Discard', path: 'api/dead-letters/discard', letters: true, done: 'discarded', danger: true, text: 'The subscription never handles these messages. Their rows stay, and messages held behind them follow.' },
};

const statuses = (refused) => Object.entries(refused ?? {}).filter(([, n]) => n > 0);

// consequences says a result in words.
function consequences(verb, r, dry) {
  const would = dry ? 'would be' : changes(verb, r) === 1 ? 'was' : 'were';
  if (!verb.letters) {
    return [
      `${plural(r.changed, 'row')} ${would} ${verb.done}.`,
      r.out_of_order > 0 && `${count(r.out_of_order)} of them ${dry ? 'would be' : 'will be'} published after later messages of their keys: nothing waited for them.`,
      ...statuses(r.refused).map(([status, n]) => `${plural(n, 'row')} that ${n === 1 ? 'is' : 'are'} ${status} ${n === 1 ? 'is' : 'are'} left alone.`),
      r.missing?.length > 0 && `Not found: ${r.missing.join(', ')}.`,
    ];
  }
  return [
    `${plural(r.marked, 'message')} ${would} ${verb.done}.`,
    verb === verbs.replay && !r.running && `No process runs ${r.subscription} now: what is marked is handled once one does.`,
    r.needs?.length > 0 && `Some wait for a build that knows ${r.needs.join(', ')}: it handles them by itself, once it runs, and others leave them alone.`,
    r.skipping > 0 && `${count(r.skipping)} of them ${dry ? 'would come' : 'come'} after later messages of their keys: nothing waited for them.`,
    r.following > 0 && `${plural(r.following, 'message')} held behind them ${r.following === 1 ? 'follows' : 'follow'} by ${r.following === 1 ? 'itself' : 'themselves'}.`,
    r.behind > 0 && `${plural(r.behind, 'message')} ${r.behind === 1 ? 'stays' : 'stay'} parked: an earlier one of the same key is not selected (${(r.heads ?? []).join(', ')}). Select that one too.`,
    r.held > 0 && `${plural(r.held, 'message')} ${r.held === 1 ? 'is' : 'are'} held and ${r.held === 1 ? 'follows' : 'follow'} when it is ${r.held === 1 ? 'its' : 'their'} turn.`,
    r.underway > 0 && `${plural(r.underway, 'message')} ${r.underway === 1 ? 'is' : 'are'} in replay already.`,
    r.busy > 0 && `${plural(r.busy, 'message')} ${r.busy === 1 ? 'is' : 'are'} being handled just now, and left alone.`,
    r.past > 0 && `${plural(r.past, 'message')} ${r.past === 1 ? 'was' : 'were'} replayed or discarded before.`,
    r.missing?.length > 0 && `Not found: ${r.missing.join(', ')}.`,
  ];
}

const changes = (verb, r) => (verb.letters ? r.marked : r.changed);

// act asks for a change to what the filters choose, one per provider, and resolves with whether anything was
// changed. one says that a single thing is meant, for which neither rate nor limit is of use.
export async function act(name, targets, { one = false } = {}) {
  const verb = verbs[name];
  const outcome = h('div', { class: 'outcome', 'aria-live': 'polite' });
  const actor = h('input', { id: 'actor', required: true, maxlength: 200, autocomplete: 'username', spellcheck: 'false' });
  try { actor.value = localStorage.getItem(actorKey) ?? ''; } catch { /* storage is off */ }
  const rate = h('input', { id: 'rate', type: 'number', min: 0, step: 'any', placeholder: 'all at once' });
  const limit = h('input', { id: 'limit', type: 'number', min: 1, step: 1, placeholder: 'all', onchange: () => foresee() });
  const confirm = h('button', { type: 'button', class: verb.danger ? 'danger' : 'primary', disabled: true, id: 'confirm', onclick: () => execute() }, verb.title);
  const cancel = h('button', { value: '', id: 'cancel', autofocus: true }, 'Cancel');
  const fields = h('div', { class: 'fields' },
    h('div', null, h('label', { for: 'actor' }, 'Your name, for the record'), actor),
    !one && verb.rated && h('div', null, h('label', { for: 'rate' }, 'Per second, at most'), rate),
    !one && verb.limited && h('div', null, h('label', { for: 'limit' }, 'At most'), limit));
  const d = dialog(`${verb.title}: ${one ? 'this one' : 'what the filter selects'}`, h('p', null, verb.text), outcome, fields, h('div', { class: 'buttons' }, cancel, confirm));
  d.element.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.target.localName !== 'input') return;
    event.preventDefault(); // the form's first button is “Cancel”
    if (!confirm.disabled) execute();
  });

  let planned = null;
  let changed = false;
  let asked = 0;

  const request = (target, more) => post(verb.path, {
    provider: target.provider, filter: target.filter, ...(Number(rate.value) > 0 && { rate: Number(rate.value) }), ...(Number(limit.value) > 0 && { limit: Number(limit.value) }), ...more,
  });
  const tell = (results, dry) => replace(outcome, results.map(({ target, result }) => h('div', null,
    results.length > 1 && h('h3', null, `Provider ${target.provider}`),
    h('ul', null, consequences(verb, result, dry).filter(Boolean).map((text) => h('li', null, text))))));

  async function foresee() {
    const mine = ++asked;
    planned = null;
    confirm.disabled = true;
    replace(outcome, h('p', { class: 'quiet' }, 'Checking what this would change…'));
    try {
      const results = [];
      for (const target of targets) results.push({ target, result: await request(target, { dry_run: true }) });
      if (mine !== asked) return;
      planned = results;
      tell(results, true);
      confirm.disabled = results.every(({ result }) => !changes(verb, result));
    } catch (e) {
      if (mine === asked) replace(outcome, problem(e));
    }
  }

  async function execute() {
    if (!planned || !actor.reportValidity() || !rate.reportValidity()) return;
    try { localStorage.setItem(actorKey, actor.value); } catch { /* storage is off */ }
    confirm.disabled = true;
    const results = [];
    try {
      for (const { target, result } of planned) {
        if (!changes(verb, result)) continue;
        // What came after the look is not touched.
        results.push({ target, result: await request(target, { actor: actor.value, up_to: result.up_to }) });
        changed = true;
      }
      tell(results, false);
      outcome.append(h('p', { class: 'quiet' }, `On record as ${results.map(({ result }) => `action ${result.action}`).join(', ')}.`));
      fields.hidden = true;
      confirm.hidden = true;
      cancel.textContent = 'Close';
      cancel.className = 'primary';
      cancel.focus();
    } catch (e) {
      if (results.length) tell(results, false);
      outcome.append(problem(e));
      confirm.disabled = false;
    }
  }

  foresee();
  await d.closed;
  asked++;
  return changed;
}

// actionButton opens the dialog and calls then if anything was changed.
export function actionButton(name, targets, then, options) {
  return h('button', { type: 'button', class: verbs[name].danger ? 'danger small' : 'small', 'data-action': name, onclick: async () => { if (await act(name, typeof targets === 'function' ? targets() : targets, options)) then(); } }, verbs[name].title, options?.suffix ?? '');
}
