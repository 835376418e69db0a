// Dark or light: as the system prefers, until the switch is pressed; that is remembered.

const KEY = "embstore.theme";
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function apply() {
  const chosen = localStorage.getItem(KEY);
  document.documentElement.dataset.theme = chosen || (prefersDark.matches ? "dark" : "light");
}

export function switchTheme() {
  const now = document.documentElement.dataset.theme;
  localStorage.setItem(KEY, now === "dark" ? "light" : "dark");
  apply();
}

prefersDark.addEventListener("change", apply);
apply();
