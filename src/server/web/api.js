// Requests to the server that this page came from.

let key = sessionStorage.getItem('palimpsest.key') ?? '';
let askForKey = async () => false;  // set by the page: resolves to whether there is a new one to try

export function setKey(value) {
  key = value;
  sessionStorage.setItem('palimpsest.key', value);
}
export const getKey = () => key;
export function onKeyWanted(ask) {
  askForKey = ask;
}

export class ApiFault extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/// fetch() with the key; asks for one when the server does. Throws ApiFault for any status but 2xx.
export async function request(path, {body, signal, headers = {}, quiet = false} = {}) {
  for (let wrong = false;; wrong = true) {
    const response = await fetch(path, {
      method: body ? 'POST' : 'GET',
      headers: {...headers, ...(key && {Authorization: `Bearer ${key}`}), ...(body && {'Content-Type': 'application/json'})},
      body: body && JSON.stringify(body),
      signal,
    });
    if (response.ok) return response;
    if (response.status === 401 && !quiet && await askForKey(wrong && key !== '')) continue;
    const text = await response.text();
    let message = text.slice(0, 500);
    try {
      message = JSON.parse(text).error.message;
    } catch { /* not from this server, or cut off */ }
    throw new ApiFault(response.status, message || `HTTP ${response.status}`);
  }
}

/// The data of each server-sent event, parsed, until [DONE] or the end.
export async function* events(response) {
  const decoder = new TextDecoder();
  let rest = '';
  const reader = response.body.getReader();
  try {
    while (true) {
      const {done, value} = await reader.read();
      if (done) return;
      rest += decoder.decode(value, {stream: true});
      const parts = rest.split('\n\n');
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith('data: ')) continue;  // a ping
        const data = part.slice(6);
        if (data === '[DONE]') return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
