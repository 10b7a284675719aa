// Conversations: kept in this browser, shown, sent, answered.

import {ApiFault, events, request} from './api.js';
import {$, download, element, grouped, onceAFrame} from './dom.js';
import {render} from './markdown.js';

const SETTINGS = [
  // name, label, smallest, largest, step; a list of choices; or nothing for text
  ['temperature', 'Temperature', 0, 2, 0.05], ['top_p', 'Top p', 0, 1, 0.01], ['top_k', 'Top k', 0, 1e6, 1], ['min_p', 'Min p', 0, 1, 0.01],
  ['repeat_penalty', 'Repeat penalty', 0.01, 100, 0.01], ['presence_penalty', 'Presence penalty', -2, 2, 0.1],
  ['frequency_penalty', 'Frequency penalty', -2, 2, 0.1], ['max_tokens', 'Most tokens', 1, 1e9, 1], ['seed', 'Seed', 0, 2 ** 31, 1],
  ['reasoning_effort', 'Thinking', ['off', 'low', 'high', 'max']],
];

let chats = [];      // newest first: {id, title, system, messages: [{role, content, images, reasoning, calls, note, fault}]}
let chat = null;     // the one shown
let running = null;  // {chat, message, stop: AbortController}
let images = [];     // attached to the next message, as data URLs
let sees = false;

// -- storage ------------------------------------------------------------------------------------

const stored = name => JSON.parse(localStorage.getItem(`palimpsest.${name}`) ?? 'null');
function store(name, value) {
  try {
    localStorage.setItem(`palimpsest.${name}`, JSON.stringify(value));
    return true;
  } catch {
    notice('This browser keeps no more: export or delete conversations.');
    return false;
  }
}
function save(changed = chat) {
  if (!changed.messages.length) return;
  if (!store(`chat.${changed.id}`, changed) && changed.messages.some(m => m.images)) {
    const messages = changed.messages.map(({images: dropped, ...rest}) => rest);
    if (store(`chat.${changed.id}`, {...changed, messages})) notice('This browser has no room for the pictures of this conversation: they go when the page is left.');
  }
  store('chats', chats.filter(c => c.messages.length).map(c => c.id));
  showList();
}

function load() {
  for (const id of stored('chats') ?? []) {
    const found = stored(`chat.${id}`);
    if (Array.isArray(found?.messages)) chats.push(found);
  }
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, '0')).join('');

function open(wanted) {
  chat = wanted;
  $('system').value = chat.system ?? '';
  showList();
  showLog();
  $('input').focus();
}

export function newChat() {
  document.body.classList.remove('chats-open');
  if (chat && !chat.messages.length) return $('input').focus();
  chats.unshift({id: newId(), title: '', system: '', messages: []});
  open(chats[0]);
}

function deleteChat() {
  if (!chat.messages.length || !confirm(`Delete "${chat.title}"?`)) return;
  if (running?.chat === chat) running.stop.abort();
  localStorage.removeItem(`palimpsest.chat.${chat.id}`);
  chats = chats.filter(c => c !== chat);
  store('chats', chats.filter(c => c.messages.length).map(c => c.id));
  chat = null;
  if (chats.length) open(chats[0]);
  else newChat();
}

// -- what is shown ------------------------------------------------------------------------------

export function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = !text;
}

function showList() {
  $('chat-list').replaceChildren(...chats.map(c => element('li', {}, element('button', {
    class: 'chat', 'aria-current': c === chat ? 'true' : undefined,
    onclick: () => {
      open(c);
      document.body.classList.remove('chats-open');
    },
  }, c.title || 'New chat'))));
}

function showLog() {
  notice('');
  $('log').replaceChildren(...chat.messages.map(messageElement));
  $('log').scrollTop = $('log').scrollHeight;
  showState();
}

function showState() {
  const busy = running !== null;
  $('send').hidden = busy;
  $('stop').hidden = !busy;
}

function messageElement(message) {
  const mine = message.role === 'user';
  const body = element('div', {class: 'body'}), actions = element('span', {class: 'actions'});
  const made = element('article', {class: `message ${message.role}`, 'aria-label': mine ? 'You' : 'Answer'}, element('div', {class: 'head'}, mine ? 'You' : 'Answer', actions), body);
  made.message = message;
  const action = (text, f, title) => actions.append(element('button', {type: 'button', onclick: f, title}, text));
  action('Copy', () => navigator.clipboard?.writeText(message.content));
  if (mine) action('Edit', () => edit(made), 'Change this message; what came after it goes');
  else action('Again', () => answerAgain(message), 'Another answer in its place');
  fill(made);
  return made;
}

const thumbnails = message => (message.images ?? []).map(src => element('img', {src, alt: 'attached image'}));

/// Shows what a message holds now; cheap enough for every frame of a stream.
function fill(made) {
  const {message} = made, body = made.querySelector('.body');
  if (message.role === 'user') {
    body.replaceChildren(...thumbnails(message), element('p', {class: 'plain'}, message.content));
    return;
  }
  const part = (kind, tag, attributes = {}) => {
    const old = made.querySelector(`.${kind}`);
    if (old) return old;
    const fresh = element(tag, {class: kind, ...attributes});
    made.insertBefore(fresh, kind === 'reasoning' ? body : null);
    return fresh;
  };
  if (message.reasoning) {
    const details = part('reasoning', 'details');
    if (!details.firstChild) details.append(element('summary'), element('div'));
    details.firstChild.textContent = running?.message === message && !message.content ? 'Thinking…' : 'Thoughts';
    render(details.lastChild, message.reasoning);
  }
  render(body, message.content);
  if (message.calls?.length) {
    part('calls', 'div').replaceChildren(...message.calls.map(call => element('details', {}, element('summary', {}, `Calls ${call.name}`), element('pre', {}, call.arguments))));
  }
  if (message.fault) part('fault', 'p', {role: 'alert'}).textContent = message.fault;
  if (message.note) part('note', 'p').textContent = message.note;
  if (running?.message === message) made.setAttribute('aria-busy', 'true');
  else made.removeAttribute('aria-busy');
}

const showRunning = onceAFrame(() => {
  if (!running || running.chat !== chat) return;
  const log = $('log'), made = log.lastChild;
  if (made?.message !== running.message) return;
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  fill(made);
  if (atEnd) log.scrollTop = log.scrollHeight;
});

function edit(made) {
  const {message} = made, body = made.querySelector('.body');
  const field = element('textarea', {rows: Math.min(12, message.content.split('\n').length + 1), 'aria-label': 'Edit the message'});
  field.value = message.content;
  const send = () => {
    const at = chat.messages.indexOf(message);
    if (running || at < 0 || (!field.value.trim() && !message.images)) return;
    chat.messages.splice(at, Infinity, {...message, content: field.value});
    showLog();
    answer();
  };
  field.addEventListener('keydown', event => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send();
    else if (event.key === 'Escape') fill(made);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  body.replaceChildren(...thumbnails(message), field, element('div', {class: 'row'}, element('button', {type: 'button', onclick: send}, 'Send'), element('button', {type: 'button', onclick: () => fill(made)}, 'Cancel')));
  field.focus();
}

// -- requests -----------------------------------------------------------------------------------

function wireMessages(upTo) {
  const messages = upTo.map(({role, content, images: attached, reasoning}) => {
    if (role === 'assistant') return {role, content, ...(reasoning && {reasoning_content: reasoning})};
    if (!attached?.length) return {role, content};
    return {role, content: [...attached.map(url => ({type: 'image_url', image_url: {url}})), ...(content ? [{type: 'text', text: content}] : [])]};
  });
  return chat.system ? [{role: 'system', content: chat.system}, ...messages] : messages;
}

function sampling() {
  const body = {};
  for (const [name, , least] of SETTINGS) {
    const value = $(`set-${name}`).value;
    if (value !== '') body[name] = typeof least === 'number' ? Number(value) : value;
  }
  return body;
}

function submit() {
  const text = $('input').value;
  if (running || (!text.trim() && !images.length)) return;
  chat.messages.push({role: 'user', content: text, ...(images.length && {images})});
  chat.title ||= text.trim().slice(0, 60) || 'Image';
  $('input').value = '';
  attach([]);
  showLog();
  answer();
}

function answerAgain(message) {
  const at = chat.messages.indexOf(message);
  if (running || at < 0) return;
  chat.messages.length = at;
  showLog();
  answer();
}

/// Asks for the answer to the last message, and shows it as it comes.
async function answer() {
  const message = {role: 'assistant', content: ''};
  const of = chat, body = {messages: wireMessages(chat.messages), stream: true, stream_options: {include_usage: true}, ...sampling()};
  running = {chat, message, stop: new AbortController()};
  chat.messages.push(message);
  $('log').append(messageElement(message));
  $('log').scrollTop = $('log').scrollHeight;
  showState();
  save();
  const times = {sent: performance.now(), first: 0, last: 0};
  let usage = null;
  try {
    const id = newId();
    const response = await request('v1/chat/completions', {body, signal: running.stop.signal, headers: {'X-Request-Id': id}});
    document.dispatchEvent(new CustomEvent('answer', {detail: `chatcmpl-${id}`}));
    for await (const event of events(response)) {
      if (event.error) throw new ApiFault(0, event.error.message);
      if (event.usage) usage = event.usage;
      for (const choice of event.choices ?? []) take(message, choice, times);
      showRunning();
    }
    if (!usage) message.fault = 'The answer broke off.';
  } catch (error) {
    if (error.name === 'AbortError') message.note = 'Stopped.';
    else message.fault = error.message;
  }
  if (usage) message.note = describe(usage, times, message.finish);
  running = null;
  save(of);
  showState();
  const made = [...$('log').children].find(e => e.message === message);
  if (made) fill(made);
  $('status').textContent = message.fault ? 'No answer.' : 'The answer is complete.';
}

function take(message, choice, times) {
  const {content, reasoning_content: reasoning, tool_calls: calls} = choice.delta ?? {};
  if (content || reasoning || calls) {
    times.last = performance.now();
    times.first ||= times.last;
  }
  if (content) message.content += content;
  if (reasoning) message.reasoning = (message.reasoning ?? '') + reasoning;
  for (const call of calls ?? []) {
    const known = (message.calls ??= [])[call.index] ??= {name: '', arguments: ''};
    known.name += call.function?.name ?? '';
    known.arguments += call.function?.arguments ?? '';
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

/// "412 tokens read (380 reused, 12 read again, 20 new), 64 written, 93 a second"
function describe(usage, times, finish) {
  const {cached_tokens: reused = 0, replayed_tokens: again = 0} = usage.prompt_tokens_details ?? {};
  const fresh = usage.prompt_tokens - reused - again, seconds = (times.last - times.first) / 1000;
  const parts = [`${grouped(usage.prompt_tokens)} tokens of prompt: ${grouped(reused)} reused, ${again ? `${grouped(again)} read again, ` : ''}${grouped(fresh)} new`,
                 `${grouped(usage.completion_tokens)} written`];
  if (times.first) parts.push(`first after ${((times.first - times.sent) / 1000).toFixed(2)} s`);
  if (seconds > 0.05 && usage.completion_tokens > 1) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} a second`);
  if (finish === 'length') parts.push('stopped at the length limit');
  return parts.join(' · ');
}

// -- attachments and settings -------------------------------------------------------------------

function attach(urls) {
  images = urls;
  $('attachments').hidden = !images.length;
  $('attachments').replaceChildren(...images.map((src, at) => element('button', {type: 'button', title: 'Remove', onclick: () => attach(images.filter((_, i) => i !== at))}, element('img', {src, alt: 'attached image'}))));
}

const IMAGE = /^image\/(png|jpeg|webp|gif|bmp)$/;

/// Attaches those of the files that the server reads; whether there were any.
function takeImages(files) {
  const readable = [...files].filter(file => IMAGE.test(file.type));
  if (!sees || !files.length) return false;
  if (readable.length < files.length) notice('Pictures are PNG, JPEG, WebP, GIF or BMP.');
  readImages(readable).catch(error => notice(error.message));
  return true;
}

async function readImages(files) {
  const read = file => new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
  attach([...images, ...await Promise.all(files.map(read))]);
}

function buildSettings(defaults) {
  const values = stored('settings') ?? {};
  $('sampling').append(...SETTINGS.map(([name, label, least, most, step]) => {
    const field = Array.isArray(least)
      ? element('select', {id: `set-${name}`}, element('option', {value: ''}, 'as the model'), ...least.map(value => element('option', {}, value)))
      : element('input', {id: `set-${name}`, type: 'number', min: least, max: most, step, placeholder: defaults[name] ?? ''});
    field.value = values[name] ?? '';
    field.addEventListener('change', () => {
      if (!field.checkValidity()) field.value = '';
      store('settings', sampling());
    });
    return element('label', {}, label, field);
  }));
}

/// What the server says about itself, from GET /props.
export function serverIs(props) {
  sees = props.modalities?.vision === true;
  $('attach').hidden = !sees;
  for (const [name, value] of Object.entries(props.default_generation_settings ?? {})) {
    const field = $(`set-${name}`);
    if (field) field.placeholder = +value.toPrecision(4);
  }
  if (!props.chat) notice('This model has no chat format: the server answers /v1/completions only.');
}

export const stop = () => running?.stop.abort();

export function startChats() {
  load();
  buildSettings({});
  $('composer').addEventListener('submit', event => {
    event.preventDefault();
    submit();
  });
  $('input').addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  $('image').addEventListener('change', event => {
    takeImages(event.target.files);
    event.target.value = '';
  });
  $('input').addEventListener('paste', event => {
    if (takeImages(event.clipboardData.files)) event.preventDefault();
  });
  $('talk').addEventListener('dragover', event => {
    if (sees && event.dataTransfer.types.includes('Files')) event.preventDefault();
  });
  $('talk').addEventListener('drop', event => {
    if (takeImages(event.dataTransfer.files)) event.preventDefault();
  });
  $('stop').addEventListener('click', stop);
  $('new-chat').addEventListener('click', newChat);
  $('delete-chat').addEventListener('click', deleteChat);
  $('export-chat').addEventListener('click', () => download(`${(chat.title || 'chat').replace(/[^\w-]+/g, '_')}.json`, JSON.stringify(chat, null, 2)));
  $('system').addEventListener('change', () => {
    chat.system = $('system').value;
    save();
  });
  if (chats.length) open(chats[0]);
  else newChat();
}
