// Replays of quarantined events: a button, and the commands for a terminal.

import { change, quoted, Refusal } from "./api.js";
import { copy, el, toast } from "./view.js";

const NEEDS_NEW_ID = ["conflict", "message_id_invalid"];
const SURE_MS = 6000;

const SAYS = {
  accepted: "Stored.",
  duplicate: "It is stored already.",
  rejected: "It is still refused",
  skipped: "It cannot be replayed",
};

/** Return the buttons for one event; `place` is null where its record is not known now. */
export function replayButtons(place, code, command, focus) {
  const said = el("span", { class: "replayed" });
  const button = place === null ? null : el("button", {
    type: "button", class: "quiet", "data-focus": focus ? `r ${focus}` : null,
    onclick: () => press(button, said, place, code),
  }, labelOf(code));
  return [button, el("button", { type: "button", class: "quiet", "data-focus": focus ? `c ${focus}` : null,
    onclick: () => copy(command, "Command") }, "Copy replay command"), said].filter(Boolean);
}

/** It stores something, so it is pressed twice. */
async function press(button, said, { partition, offset }, code) {
  if (button.dataset.sure === undefined) {
    button.dataset.sure = "";
    button.textContent = "Really? It is stored";
    setTimeout(() => settle(button, code), SURE_MS);
    return;
  }
  settle(button, code);
  button.disabled = true;
  said.textContent = "Replaying…";
  const query = NEEDS_NEW_ID.includes(code) ? { new_id: "true" } : {};
  try {
    const { result, why } = await change(`admin/v1/quarantine/${partition}/${offset}/replay`, query);
    said.textContent = why ? `${SAYS[result]}: ${why}.` : SAYS[result];
  } catch (error) {
    said.textContent = error instanceof Refusal ? error.message : "The gateway does not answer.";
  }
  toast(said.textContent); // its row may be made anew any moment
  button.disabled = false;
}

function settle(button, code) {
  delete button.dataset.sure;
  button.textContent = labelOf(code);
}

const labelOf = (code) => (NEEDS_NEW_ID.includes(code) ? "Replay under a new id" : "Replay");

/** Return the command that says what would be sent again of a source's events that were refused alike. */
export function replayOf(event) {
  const source = event.source ? ` --source ${quoted(event.source)}` : "";
  return `gateway quarantine replay --reason ${quoted(event.code)}${source}${newIdFor(event.code)} --dry-run`;
}

/** Return the same for one event, at a place of the quarantine. */
export function replayAt({ partition, offset }, code) {
  return `gateway quarantine replay ${partition}:${offset}${newIdFor(code)} --dry-run`;
}

const newIdFor = (code) => (NEEDS_NEW_ID.includes(code) ? " --new-id" : "");
