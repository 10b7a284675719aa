// The memory view: what the running answer does to the model's memories, from GET /v1/memory (docs/web.md).

import {ApiFault, events, request} from './api.js';
import {$, bytes, element, grouped, onceAFrame} from './dom.js';

const KEPT = 512, SHOWN = 192, RIBBON = 96, MILLION = 1 << 20;

let model = null;             // the first event of the stream
let pageLayers = [], expertLayers = [];
let pages = new Map();        // "layer.head" -> {rows, columns, peak, cells}
let tokens = [];              // the last ones, oldest first
let length = 0;
let focus = {layer: -1, head: 0};
let answer = null, connection = null;

const isOpen = () => !$('memory').hidden;

// -- data ---------------------------------------------------------------------------------------

function decode(base64) {
  const text = atob(base64), out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) out[i] = text.charCodeAt(i);
  return out;
}

/// Watches the answer of this id for as long as the view is open.
export function follow(id) {
  answer = id;
  if (isOpen()) connect(true);
}

async function connect(fresh) {
  connection?.abort();
  const mine = connection = new AbortController();
  if (fresh) {
    pages = new Map();
    tokens = [];
  }
  const layer = focus.layer >= 0 ? `&layer=${focus.layer}` : '';
  try {
    for (let tries = 0;; ++tries) {
      try {
        const response = await request(`v1/memory?request=${answer}${layer}`, {signal: mine.signal, quiet: true});
        status('Watching the answer as it is written.');
        for await (const event of events(response)) {
          if (mine.signal.aborted) return;  // what is left is of another layer
          if (event.object === 'memory.model') begin(event);
          else take(event);
        }
        status('The answer is complete; this is what it left.');
        break;
      } catch (error) {
        // The server hears of the answer a moment later than of us, or its watchers are as many as may be.
        if (!(error instanceof ApiFault) || ![404, 429].includes(error.status) || tries === 4) throw error;
        await new Promise(resolve => setTimeout(resolve, 300));
        if (mine.signal.aborted) return;
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') return;
    status(error.status === 404 ? 'This answer is not being computed any more. Send another message.' : error.message);
  }
  if (connection === mine) connection = null;
}

function status(text) {
  $('mem-status').textContent = text;
}

function begin(event) {
  const other = JSON.stringify(event.layers) !== JSON.stringify(model?.layers);
  model = event;
  focus.layer = event.layer;
  pageLayers = event.layers.flatMap((l, i) => l.page ? [i] : []);
  expertLayers = event.layers.flatMap((l, i) => l.ffn === 'moe' ? [i] : []);
  if (other) {
    $('mem-layer').replaceChildren(...pageLayers.map(l => element('option', {value: l}, `${l} ${event.layers[l].mixer}`)));
    $('mem-experts-part').hidden = expertLayers.length === 0;
    $('mem-depth-part').hidden = !event.block_layers;
  }
  $('mem-layer').value = focus.layer;
  $('mem-body').hidden = false;
  buildPages();
  draw();
}

function take(event) {
  length = event.length;
  for (const token of event.tokens) {
    token.layer = focus.layer;
    token.retention = decode(token.retention);
    token.depth = decode(token.depth);
    tokens.push(token);
  }
  if (tokens.length > KEPT) tokens.splice(0, tokens.length - KEPT);
  for (const page of event.pages) {
    page.cells = decode(page.cells);
    pages.set(`${page.layer}.${page.head}`, page);
  }
  draw();
}

function look(layer, head) {
  const moved = layer !== focus.layer;
  focus = {layer, head};
  $('mem-layer').value = layer;
  if (moved && connection) connect(false);
  buildPages();
  draw();
}

// -- colours ------------------------------------------------------------------------------------

// From nothing to much; the first colour is close to the background.
const STOPS = {
  dark: [[22, 26, 33], [34, 61, 110], [24, 120, 128], [116, 179, 80], [250, 230, 90]],
  light: [[250, 249, 245], [190, 214, 200], [86, 160, 160], [40, 92, 140], [40, 20, 90]],
};
let palette, ink, soft;

export function recolour() {
  const style = getComputedStyle(document.documentElement);
  const dark = style.getPropertyValue('--dark').trim() === '1', stops = STOPS[dark ? 'dark' : 'light'];
  ink = style.getPropertyValue('--ink').trim();
  soft = style.getPropertyValue('--soft').trim();
  palette = Array.from({length: 256}, (_, i) => {
    const at = i / 255 * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at));
    return stops[low].map((c, k) => Math.round(c + (stops[low + 1][k] - c) * (at - low)));
  });
  if (model && isOpen()) draw();
}
const colour = t => `rgb(${palette[Math.round(255 * Math.min(1, Math.max(0, t || 0)))].join()})`;

/// One pixel a value; CSS makes it large. value(row, column) in 0..255.
function paint(canvas, rows, columns, value) {
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext('2d'), image = context.createImageData(columns, rows);
  for (let r = 0, at = 0; r < rows; ++r) {
    for (let c = 0; c < columns; ++c, at += 4) {
      const rgb = palette[value(r, c)];
      image.data[at] = rgb[0];
      image.data[at + 1] = rgb[1];
      image.data[at + 2] = rgb[2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
}

/// A canvas as sharp as the screen; returns its context in CSS pixels.
function sharp(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  context.fillStyle = ink;
  return context;
}

/// A grid with a name for each row. value(row, column): 0..1, null for no cell; outlined(row, column).
function grid(canvas, names, columns, value, {outlined = () => false, heads = [], cell = 14} = {}) {
  const left = 90, top = heads.length ? 16 : 0, width = canvas.parentElement.clientWidth || 300;
  const context = sharp(canvas, width, top + names.length * cell), w = Math.min(60, (width - left) / columns);
  heads.forEach((head, c) => context.fillText(head, left + c * w + 2, top / 2, w - 3));
  names.forEach((name, r) => {
    context.fillStyle = soft;
    context.fillText(name, 0, top + (r + 0.5) * cell, left - 6);
    for (let c = 0; c < columns; ++c) {
      const v = value(r, c);
      if (v === null) continue;
      context.fillStyle = colour(v);
      context.fillRect(left + c * w, top + r * cell, Math.max(1, w - 1), cell - 1);
      if (!outlined(r, c)) continue;
      context.strokeStyle = ink;
      context.strokeRect(left + c * w + 0.5, top + r * cell + 0.5, Math.max(1, w - 2), cell - 2);
    }
  });
}

// -- drawing ------------------------------------------------------------------------------------

const draw = onceAFrame(() => {
  if (!model || !isOpen()) return;
  drawBytes();
  drawPages();
  drawFocus();
  drawTokens();
  if (expertLayers.length) drawExperts();
  if (model.block_layers) drawDepth();
});

function drawBytes() {
  const row = (name, n) => {
    const lists = n * model.bytes_per_token, all = n * model.attention_bytes_per_token, sum = model.fixed_bytes + lists, most = Math.max(sum, all) || 1;
    const bar = element('div', {class: 'bar'});
    for (const [kind, value] of [['fixed', model.fixed_bytes], ['lists', lists]]) {
      const piece = element('span', {class: kind});
      piece.style.width = `${100 * value / most}%`;
      bar.append(piece);
    }
    return element('tr', {}, element('th', {scope: 'row'}, name), element('td', {}, bytes(model.fixed_bytes)), element('td', {}, bytes(lists)), element('td', {}, bytes(all)), element('td', {class: 'wide'}, bar));
  };
  const heads = ['', 'pages, tails', 'lists', 'all as attention', 'share of attention'];
  $('mem-bytes').replaceChildren(element('thead', {}, element('tr', {}, ...heads.map(text => element('th', {scope: 'col'}, text)))),
                                 element('tbody', {}, row(`now, ${grouped(length)} tokens`, length), row('at 1M tokens', MILLION)));
}

/// A button a page. They stay as they are while they are the same ones, and so does the keyboard's focus.
function buildPages() {
  const shown = model.all_pages ? pageLayers : pageLayers.filter(l => l === focus.layer), wanted = shown.map(l => `${l}:${model.layers[l].page[0]}`).join();
  if ($('mem-pages').dataset.shown !== wanted) $('mem-pages').replaceChildren(...shown.map(layer => {
    const heads = Array.from({length: model.layers[layer].page[0]}, (_, head) => {
      const at = `${layer}.${head}`;
      return element('button', {type: 'button', 'data-at': at, onclick: () => look(layer, head)}, element('canvas'));
    });
    return element('div', {class: 'page-row'}, element('span', {class: 'caption'}, `layer ${layer}`), ...heads);
  }));
  $('mem-pages').dataset.shown = wanted;
  for (const button of $('mem-pages').querySelectorAll('button')) button.setAttribute('aria-pressed', String(button.dataset.at === `${focus.layer}.${focus.head}`));
}

function paintPage(canvas, page) {
  if (page) paint(canvas, page.rows, page.columns, (r, c) => page.cells[r * page.columns + c]);
}

function drawPages() {
  for (const button of $('mem-pages').querySelectorAll('button')) {
    const page = pages.get(button.dataset.at);
    paintPage(button.firstChild, page);
    const [layer, head] = button.dataset.at.split('.');
    button.title = `layer ${layer}, head ${head}${page ? `, largest number ${page.peak?.toPrecision(3)}` : ''}`;
    button.setAttribute('aria-label', button.title);
  }
}

function drawFocus() {
  for (const part of ['mem-focus-title', 'mem-focus']) $(part).hidden = focus.layer < 0;
  if (focus.layer < 0) return;  // a model that keeps lists only
  const [heads, values, width] = model.layers[focus.layer].page;
  focus.head = Math.min(focus.head, heads - 1);
  $('mem-focus-title').textContent = `Layer ${focus.layer}, head ${focus.head} of ${heads}: a page of ${values} × ${width}`;
  paintPage($('mem-page'), pages.get(`${focus.layer}.${focus.head}`));
  $('mem-page').setAttribute('aria-label', $('mem-focus-title').textContent);

  const last = tokens.filter(t => t.layer === focus.layer).slice(-SHOWN);
  const channels = last.length ? last[0].retention.length / heads : 0;
  // Most channels keep almost everything: the cube spreads the upper end.
  if (channels) paint($('mem-retention'), channels, last.length, (r, c) => Math.round(255 * (last[c].retention[focus.head * channels + r] / 255) ** 3));
  $('mem-retention').hidden = !channels;

  const canvas = $('mem-writes'), height = 90, box = canvas.parentElement.clientWidth || 300, context = sharp(canvas, box, height);
  const most = Math.max(1e-9, ...last.map(t => t.head_write[focus.head] ?? 0)), strongest = Math.max(1, ...last.map(t => t.head_beta[focus.head] ?? 0)), step = box / Math.max(SHOWN / 2, last.length);
  last.forEach((token, i) => {
    const bar = (token.head_write[focus.head] ?? 0) / most * (height - 16);
    context.fillStyle = colour(0.55);
    context.fillRect(i * step, height - bar, Math.max(1, step - 1), bar);
    context.fillStyle = ink;
    context.fillRect(i * step + step / 2 - 1, height - 3 - (token.head_beta[focus.head] ?? 0) / strongest * (height - 18), 2, 2);
  });
  context.fillStyle = soft;
  context.fillText(`largest edit ${most.toPrecision(3)}`, 4, 8);
}

function drawTokens() {
  const last = tokens.slice(-RIBBON), sum = token => Math.hypot(...token.write), most = Math.max(1e-9, ...last.map(sum));
  $('mem-tokens').replaceChildren(...last.map(token => {
    const part = sum(token) / most;
    const span = element('span', {class: 'token', title: `position ${token.position}: wrote ${sum(token).toPrecision(3)}`}, token.text.replace(/\n/g, '↵') || '∅');
    span.style.background = colour(part * 0.9);
    span.classList.toggle('on-strong', part > 0.45);
    return span;
  }));
}

function drawExperts() {
  const recent = tokens.slice(-64), k = model.experts_per_token, used = expertLayers.map(() => new Float32Array(model.experts));
  for (const token of recent) token.experts.forEach((id, i) => used[Math.floor(i / k)][id] += 1);
  const now = new Set((recent.at(-1)?.experts ?? []).map((id, i) => `${Math.floor(i / k)}.${id}`));
  const most = used.map(counts => Math.max(1, ...counts));
  grid($('mem-experts'), expertLayers.map(l => `layer ${l}`), model.experts, (r, c) => used[r][c] / most[r], {outlined: (r, c) => now.has(`${r}.${c}`)});
  $('mem-experts').setAttribute('aria-label', `Experts used in ${expertLayers.length} layers; the last token: ${(recent.at(-1)?.experts ?? []).join(', ')}`);
}

/// Each sublayer's sources: the banked blocks, oldest first, and the running sum. The same walk as forward's.
function reads() {
  const out = [], size = model.block_layers;
  let banked = 0;
  const add = name => {
    if (banked > 0) out.push({name, banked});
  };
  model.layers.forEach((layer, l) => {
    add(`${l} ${layer.mixer}`);
    if (l % size === 0) ++banked;
    add(`${l} ${layer.ffn}`);
  });
  add('output');
  return {reads: out, blocks: banked};
}

function drawDepth() {
  const weights = tokens.at(-1)?.depth, {reads: all, blocks} = reads(), size = model.block_layers;
  if (!weights) return;
  let at = 0;
  const starts = all.map(read => (at += read.banked + 1) - read.banked - 1);
  const heads = Array.from({length: blocks}, (_, b) => b === 0 ? 'input' : `${(b - 1) * size}–${b * size - 1}`).concat('running');
  grid($('mem-depth'), all.map(read => read.name), blocks + 1, (r, c) => {
    if (c === blocks) return weights[starts[r] + all[r].banked] / 255;
    return c < all[r].banked ? weights[starts[r] + c] / 255 : null;
  }, {heads});
  $('mem-depth').setAttribute('aria-label', `Attention over depth of ${all.length} sublayers over ${blocks} blocks and the running sum`);
}

// -- opening and closing ------------------------------------------------------------------------

export function showMemory(open) {
  $('memory').hidden = !open;
  $('toggle-memory').setAttribute('aria-expanded', String(open));
  document.body.classList.toggle('memory-open', open);
  if (!open) {
    connection?.abort();
    connection = null;
  } else if (answer) {
    connect(false);
    draw();
  }
}

export function startMemory() {
  recolour();
  document.addEventListener('answer', event => follow(event.detail));
  $('toggle-memory').addEventListener('click', () => showMemory(!isOpen()));
  $('mem-close').addEventListener('click', () => showMemory(false));
  $('mem-layer').addEventListener('change', event => look(Number(event.target.value), focus.head));
  // Arrow keys move among the pages.
  $('mem-pages').addEventListener('keydown', event => {
    const buttons = [...$('mem-pages').querySelectorAll('button')], at = buttons.indexOf(document.activeElement);
    const across = model ? model.layers[focus.layer].page[0] : 1;
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across}[event.key];
    if (at < 0 || !step || !buttons[at + step]) return;
    event.preventDefault();
    buttons[at + step].focus();
    buttons[at + step].click();
  });
  new ResizeObserver(() => draw()).observe($('memory'));
}
