// Says when a part of the page did not load: then no other script of it runs. It is no module, so that it runs first.
'use strict';

function sayIncomplete() {
  const again = document.createElement('button');
  again.type = 'button';
  again.textContent = 'Reload';
  again.addEventListener('click', () => location.reload());
  document.getElementById('status').replaceChildren('A part of this page did not load. ', again);
}

addEventListener('error', event => {
  const part = event.target instanceof HTMLScriptElement || event.target instanceof HTMLLinkElement;
  if (!part || window.ingle)
    return;
  if (document.readyState === 'loading')
    addEventListener('DOMContentLoaded', sayIncomplete);
  else
    sayIncomplete();
}, true);
