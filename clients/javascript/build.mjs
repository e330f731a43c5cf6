/** Joins src/*.js to the one file that pages copy. */
import { readFileSync, writeFileSync } from "node:fs";

const PARTS = ["head", "types", "client", "answers", "queue", "session", "storage", "ids"];

const here = (name) => new URL(name, import.meta.url);
const text = PARTS.map((name) => readFileSync(here(`src/${name}.js`), "utf8")).join("\n");
writeFileSync(here("gateway-client.js"), text);
