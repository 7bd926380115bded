// Accessible tabs: arrow keys switch tabs, one panel is shown.
export function start() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const choose = (chosen) => {
    for (const tab of tabs) {
      const is = tab === chosen;
      tab.setAttribute("aria-selected", String(is));
      tab.tabIndex = is ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !is;
    }
    history.replaceState(null, "", `#${chosen.getAttribute("aria-controls")}`);
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      choose(next);
    });
  });
  const requested = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (requested) choose(requested);
}
