// Elements without any markup: text is text, whoever wrote it.

export const $ = id => document.getElementById(id);

/// element('p', {class: 'x', onclick: f}, 'text', child, ...)
export function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === 'function') e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.filter(child => child !== undefined && child !== null));
  return e;
}

/// Calls f at most once a frame.
export function onceAFrame(f) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      f();
    });
  };
}

export const grouped = n => Math.round(n).toLocaleString('en');

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) {
    n /= 1024;
    ++u;
  }
  return `${n >= 100 || u === 0 ? Math.round(n) : n.toPrecision(3)} ${units[u]}`;
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  element('a', {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
