// A small part of Markdown, made of elements: no text ever becomes markup. Links go to http and https only, images become links.

import {element} from './dom.js';

const LONGEST_INLINE = 20000, DEEPEST = 8;
const FENCE = /^ {0,3}(```+|~~~+)\s*([^`]*)$/, HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/, RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/, ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/, DASHES = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/// Makes `container` show `text`. Blocks that did not change since the last call are kept, so a stream costs only its last block.
export function render(container, text) {
  const blocks = split(text);
  blocks.forEach((block, i) => {
    const old = container.children[i], source = block.lines.join('\n');
    if (old && old.source === source && old.kind === block.kind) return;
    const made = build(block, 0);
    made.source = source;
    made.kind = block.kind;
    if (old) old.replaceWith(made);
    else container.append(made);
  });
  while (container.children.length > blocks.length) container.lastChild.remove();
}

/// Lines into blocks {kind, lines}.
function split(text) {
  const lines = text.split('\n'), blocks = [];
  const isTable = i => lines[i].includes('|') && i + 1 < lines.length && lines[i + 1].includes('|') && DASHES.test(lines[i + 1]);
  const begins = i => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) || ITEM.test(lines[i]) || isTable(i);
  for (let i = 0; i < lines.length;) {
    const first = i, fence = FENCE.exec(lines[i]);
    const take = (kind, goesOn) => {
      for (++i; i < lines.length && goesOn(lines[i], i);) ++i;
      blocks.push({kind, lines: lines.slice(first, i)});
    };
    if (lines[i].trim() === '') {
      ++i;
    } else if (fence) {
      const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      take('code', line => !close.test(line));
      ++i;  // the closing fence
    } else if (RULE.test(lines[i])) {
      take('rule', () => false);
    } else if (HEADING.test(lines[i])) {
      take('heading', () => false);
    } else if (QUOTE.test(lines[i])) {
      take('quote', line => QUOTE.test(line));
    } else if (ITEM.test(lines[i])) {
      take('list', (line, at) => ITEM.test(line) || /^ {2,}\S/.test(line) || (line.trim() === '' && at + 1 < lines.length && /^( {2,}\S| {0,3}([-*+]|\d{1,9}[.)])\s)/.test(lines[at + 1])));
    } else if (isTable(i)) {
      take('table', line => line.includes('|'));
    } else {
      take('paragraph', (line, at) => line.trim() !== '' && !begins(at));
    }
  }
  return blocks;
}

function build({kind, lines}, depth) {
  const inner = (parent, text) => {
    if (depth >= DEEPEST) parent.append(text);
    else parent.append(...split(text).map(block => build(block, depth + 1)));
    return parent;
  };
  switch (kind) {
    case 'code': return code(FENCE.exec(lines[0])[2].trim(), lines.slice(1).join('\n'));
    case 'rule': return element('hr');
    case 'heading': {
      const [, marks, text] = HEADING.exec(lines[0]);
      return inline(element(`h${Math.min(6, marks.length + 2)}`), text);
    }
    case 'quote': return inner(element('blockquote'), lines.map(line => line.replace(QUOTE, '')).join('\n'));
    case 'list': return list(lines, inner);
    case 'table': return table(lines);
    default: return inline(element('p'), lines.join('\n'));
  }
}

function code(language, text) {
  const copy = element('button', {class: 'copy', type: 'button', onclick: () => navigator.clipboard?.writeText(text)}, 'Copy');
  return element('div', {class: 'code'}, element('div', {class: 'code-head'}, element('span', {}, language.slice(0, 40)), copy), element('pre', {tabindex: 0}, element('code', {}, text)));
}

function list(lines, inner) {
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length < (items.at(-1)?.width ?? 4)) items.push({width: Math.min(item[0].length, item[1].length + item[2].length + 1), lines: [line.slice(item[0].length)]});
    else items.at(-1).lines.push(line.slice(Math.min(items.at(-1).width, line.search(/\S|$/))));
  }
  const marker = ITEM.exec(lines[0])[2], ordered = /\d/.test(marker);
  return element(ordered ? 'ol' : 'ul', ordered ? {start: parseInt(marker, 10)} : {},
                 ...items.map(item => item.lines.length === 1 ? inline(element('li'), item.lines[0]) : inner(element('li'), item.lines.join('\n'))));
}

function table(lines) {
  const cells = line => line.trim().replace(/^\||\|$/g, '').split('|').map(cell => cell.trim());
  const row = (line, kind) => element('tr', {}, ...cells(line).map(cell => inline(element(kind), cell)));
  return element('div', {class: 'table'}, element('table', {}, element('thead', {}, row(lines[0], 'th')), element('tbody', {}, ...lines.slice(2).map(line => row(line, 'td')))));
}

const INLINE = /\\([!-/:-@[-`{-~])|(`+)([\s\S]*?[^`])\2(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*[^\s*])\*|(?<![\w])_(?=\S)([^_]*\S)_(?!\w)|~~(?=\S)([\s\S]*?\S)~~|!?\[([^\]\n]*)\]\(([^\s()]+)[^)]*\)|(https?:\/\/[^\s<>"')\]]+)/g;

function inline(parent, text) {
  if (text.length > LONGEST_INLINE) {
    parent.append(text);
    return parent;
  }
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, escaped, , codeText, bold, starred, lined, struck, label, target, address] = match;
    parent.append(text.slice(at, match.index));
    at = match.index + whole.length;
    if (escaped) parent.append(escaped);
    else if (codeText !== undefined) parent.append(element('code', {}, codeText.trim() || codeText));
    else if (bold) parent.append(inline(element('strong'), bold));
    else if (starred ?? lined) parent.append(inline(element('em'), starred ?? lined));
    else if (struck) parent.append(inline(element('del'), struck));
    else if (address) parent.append(link(address, address));
    else parent.append(/^https?:\/\//i.test(target) ? link(label || target, target) : whole);
  }
  parent.append(text.slice(at));
  return parent;
}

const link = (text, target) => element('a', {href: target, target: '_blank', rel: 'noopener noreferrer'}, text);
