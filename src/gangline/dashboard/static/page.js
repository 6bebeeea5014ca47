// What a page does beyond links and forms: local times, copying, live updates and their pause, logs.
"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const format = new Intl.DateTimeFormat(document.documentElement.lang, {dateStyle: "medium", timeStyle: "long"});
const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, {numeric: "always", style: "long"});
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function showTimes(root = document) {
  for (const time of all("time[datetime]:not(.stamp)", root)) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    const title = format.format(at);
    if (time.title !== title) time.title = title;
    const seconds = Math.max(0, (Date.now() - at) / 1000);
    const [unit, size] = UNITS.find(([, size]) => seconds >= size) || UNITS[3];
    const text = relative.format(-Math.floor(seconds / size), unit);
    if (time.textContent !== text) time.textContent = text;
  }
}

function addCopyButtons(root = document) {
  if (!navigator.clipboard) return;
  for (const code of all("code[data-copy]:not([data-ready])", root)) {
    code.dataset.ready = "";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    const {copyLabel, copiedLabel} = document.body.dataset;
    button.textContent = copyLabel;
    button.setAttribute("aria-label", `${copyLabel}: ${code.textContent}`);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = copiedLabel;
      setTimeout(() => { button.textContent = copyLabel; }, 1500);
    });
    code.after(button);
  }
}

// Streams. The element with the address of a stream is replaced to pause and to go on.
const CONNECT = "hx-sse:connect";
const streams = () => all("[hx-sse\\:connect], [data-paused]");
function startPause() {
  const pause = document.querySelector("[data-pause]");
  if (!window.htmx || !pause) return;
  pause.hidden = false;
  pause.setAttribute("aria-pressed", "false");
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? pause.dataset.off : pause.dataset.on;
    for (const old of streams()) {
      const fresh = document.createElement("div");
      const address = old.getAttribute(CONNECT) || old.dataset.paused;
      fresh.id = old.id;
      fresh.setAttribute("hx-swap", "none");
      if (paused) fresh.dataset.paused = address;
      else fresh.setAttribute(CONNECT, address);
      old.replaceWith(fresh);
      if (!paused) window.htmx.process(fresh);
    }
  });
}
function showEnded() {
  const note = document.getElementById("ended");
  if (note) note.hidden = false;
  streams().forEach((element) => element.remove());
}
document.addEventListener("ended", showEnded);
document.addEventListener("complete", (event) => event.target.remove());
document.addEventListener("htmx:sse:error", (event) => {
  if ([401, 403, 404].includes(event.detail?.status)) showEnded();
});

// One sentence for screen readers, at most every five seconds.
let announced = "", announcedAt = 0;
function announce() {
  const text = document.querySelector("[data-announce]")?.dataset.announce || "";
  if (!text || text === announced || Date.now() - announcedAt < 5000) return;
  const first = !announced;
  announced = text;
  announcedAt = Date.now();
  const region = document.getElementById("announce");
  if (region && !first) region.textContent = text;
}

// Logs follow their end while it is in view, and keep a limited number of lines.
function tidyLogs() {
  for (const box of all("[data-log]")) {
    const list = box.querySelector("ol");
    while (list.childElementCount > Number(box.dataset.max)) list.firstElementChild.remove();
    if (box.dataset.away !== "true") box.scrollTop = box.scrollHeight;
  }
}
for (const box of all("[data-log]")) {
  box.addEventListener("scroll", () => {
    box.dataset.away = String(box.scrollHeight - box.scrollTop - box.clientHeight > 40);
  }, {passive: true});
}

function refresh() {
  showTimes();
  addCopyButtons();
  announce();
  tidyLogs();
}
document.addEventListener("htmx:after:swap", refresh);
setInterval(() => { if (!document.hidden) { showTimes(); announce(); } }, 5000);
refresh();
startPause();
