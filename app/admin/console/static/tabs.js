// The two views below the charts: events, and for operators partitions. The address names the one that is seen.

import { byId } from "./view.js";

const NAMES = ["events", "partitions"];

export class Tabs {
  /** `onShown`: called with the name of a view that is shown. */
  constructor(onShown) {
    this.onShown = onShown;
    this.tabs = NAMES.map((name) => byId(`tab-${name}`));
    this.tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => this.show(NAMES[place]));
      tab.addEventListener("keydown", (event) => this.move(event, place));
    });
    this.show(NAMES.includes(location.hash.slice(1)) ? location.hash.slice(1) : NAMES[0], false);
  }

  show(name, isNamed = true) {
    NAMES.forEach((other, place) => {
      this.tabs[place].setAttribute("aria-selected", String(other === name));
      this.tabs[place].tabIndex = other === name ? 0 : -1;
      byId(`panel-${other}`).hidden = other !== name;
    });
    if (isNamed) history.replaceState(null, "", `#${name}`);
    this.onShown(name);
  }

  move(event, place) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (place + step + NAMES.length) % NAMES.length;
    this.show(NAMES[next]);
    this.tabs[next].focus();
  }

  /** Mark the view of the partitions if some need to be seen. */
  mark(level) {
    this.tabs[1].dataset.level = level;
  }
}
