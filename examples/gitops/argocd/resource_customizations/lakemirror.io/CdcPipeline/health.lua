-- The health of a CdcPipeline. Its status is in the format of kstatus: observedGeneration, and the conditions
-- Ready, Reconciling and Stalled, of which the last two are present only while they are true.
-- What each condition and reason means: docs/conditions and docs/gitops.md of Lakemirror.
local hs = {status = "Progressing", message = "Waiting for the operator of Lakemirror"}

if obj.status == nil or obj.status.conditions == nil then
  return hs
end
if obj.status.observedGeneration ~= obj.metadata.generation then
  hs.message = "Waiting for the operator to process generation " .. tostring(obj.metadata.generation)
  return hs
end

local conditions = {}
local findings = ""
for _, condition in ipairs(obj.status.conditions) do
  if condition.status == "True" or condition.type == "Ready" then
    conditions[condition.type] = condition
  end
end
for _, name in ipairs({"TableFailed", "DataQuality", "SchemaDrift", "ImageRollout"}) do
  if conditions[name] ~= nil then
    findings = findings .. "; " .. name .. ": " .. (conditions[name].message or "")
  end
end

local function words(condition)
  return condition.reason .. ": " .. (condition.message or "")
end

local ready = conditions["Ready"]
if conditions["Stalled"] ~= nil then
  -- Until a person acts. An edit that was refused is here too, while the driver goes on with the last good spec.
  hs.status = "Degraded"
  hs.message = words(conditions["Stalled"])
elseif conditions["Reconciling"] ~= nil then
  hs.message = words(conditions["Reconciling"])
elseif ready == nil then
  return hs
elseif ready.status ~= "True" then
  -- The driver is there and nothing is under way, but it does not do what it should.
  hs.status = "Degraded"
  hs.message = words(ready)
elseif ready.reason == "Suspended" then
  hs.status = "Suspended"
  hs.message = words(ready)
else
  -- Tables that failed, records in quarantine and changed columns are told, and leave the pipeline healthy, as it is Ready.
  hs.status = "Healthy"
  hs.message = words(ready) .. findings
end
return hs
