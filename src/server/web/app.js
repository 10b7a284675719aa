// Puts the page together.

import {getKey, onKeyWanted, request, setKey} from './api.js';
import {newChat, notice, serverIs, startChats, stop} from './chat.js';
import {$} from './dom.js';
import {recolour, showMemory, startMemory} from './memory.js';

function look(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  recolour();
}

/// Resolves to whether a key was given. One dialog serves all who wait for it.
let asking = null;
function askForKey(wrong) {
  asking ??= new Promise(resolve => {
    const dialog = $('key-dialog');
    $('key-wrong').hidden = !wrong;
    $('key').value = '';
    dialog.returnValue = '';
    dialog.addEventListener('close', () => {
      const given = dialog.returnValue === 'ok' && $('key').value !== '';
      if (given) setKey($('key').value);
      asking = null;
      resolve(given);
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

function toggleChats() {
  const open = document.body.classList.toggle('chats-open');
  $('toggle-chats').setAttribute('aria-expanded', String(open));
}

function openSettings() {
  $('settings-key').value = getKey();
  $('settings').showModal();
}

async function askServer() {
  try {
    const props = await (await request('props')).json();
    $('model').textContent = `${props.model_alias}, ${props.n_ctx.toLocaleString('en')} tokens`;
    serverIs(props);
  } catch (error) {
    notice(`The server did not answer: ${error.message}`);
  }
}

onKeyWanted(askForKey);
startChats();
startMemory();

const theme = localStorage.getItem('palimpsest.theme') ?? '';
$('theme').value = theme;
look(theme);
$('theme').addEventListener('change', () => {
  localStorage.setItem('palimpsest.theme', $('theme').value);
  look($('theme').value);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', recolour);
$('settings-key').addEventListener('change', () => setKey($('settings-key').value));
$('toggle-chats').addEventListener('click', toggleChats);
$('toggle-settings').addEventListener('click', openSettings);

document.addEventListener('keydown', event => {
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) stop();
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const actions = {KeyN: newChat, KeyM: () => showMemory($('memory').hidden), KeyS: openSettings};
  if (!actions[event.code] || document.querySelector('dialog[open]')) return;
  event.preventDefault();
  actions[event.code]();
});
askServer();
