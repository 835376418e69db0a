// Asking an operator, once, before anything is done; and saying that it was.

import { h } from "./dom.js";

const TOAST_MS = 6000;
const dialog = document.getElementById("dialog");

// fields: {name, label, value?, type?, options?}; act(values) does it, and what it throws is shown
export function confirm({ title, text, fields = [], button, danger = false, act }) {
  const problem = h("p", { className: "problem", role: "alert" });
  const inputs = fields.map(field);
  const go = h("button", { id: "confirm", type: "submit", className: danger ? "danger" : "strong", textContent: button });
  const stop = h("button", { id: "cancel", type: "button", textContent: "Cancel", onclick: () => dialog.close() });
  const form = h(
    "form",
    {},
    h("h2", { id: "dialog-title", textContent: title }),
    ...text.map((said) => h("p", { textContent: said })),
    ...inputs.map((one) => one.element),
    problem,
    h("div", { className: "buttons" }, stop, go),
  );
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    problem.textContent = "";
    try {
      const said = await act(Object.fromEntries(inputs.map((one) => [one.name, one.input.value.trim()])));
      if (isShown()) dialog.close();
      if (said) toast(said);
    } catch (error) {
      const said = error.plain || error.message;
      if (isShown()) problem.textContent = said;
      else toast(`${title}: ${said}`, "bad"); // who has closed it has not taken it back
    } finally {
      go.disabled = false;
    }
  };
  const isShown = () => dialog.open && form.isConnected;
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
  (inputs[0]?.input || stop).focus();
}

function field({ name, label, value = "", type = "text", options, unit = "" }) {
  const id = `field-${name}`;
  const input = options
    ? h("select", { id, name }, ...options.map((one) => h("option", { value: one, textContent: one })))
    : h("input", { id, name, type, autocomplete: "off", spellcheck: false });
  input.value = value;
  const said = unit ? `${label}, ${unit}` : label;
  return { name, input, element: h("div", {}, h("label", { for: id, textContent: said }), input) };
}

export function toast(text, kind = "good") {
  const shown = h("div", { className: `toast ${kind}`, textContent: text });
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), TOAST_MS);
}
