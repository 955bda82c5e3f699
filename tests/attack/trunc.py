"""trunc.py: fsync; N acknowledged pushes; wait W s; kill -9; cut the newest log segment in a copy; start: refused or lost?"""
from psc import *
import shutil,glob
for W in (0,3):
  for dura in ('fsync',):
    base='BUILD'; shutil.rmtree(base,ignore_errors=True); os.makedirs(base+'/src')
    p=Psd('--data-dir',base+'/src','--durability',dura,log='BUILD')
    c=C(p.port); c.join(job='c',inc=7); t=c.table('ct').n(3); 
    for i in range(1,201): assert c.push(t,[1],[(1,0)],i,i-1).st==0
    time.sleep(W); p.kill()
    seg=sorted(glob.glob(base+'/src/log/*/shard-000/*.psl'))[-1]; n=os.path.getsize(seg)
    for cut in (n-10,n*3//4,n//2,n//4,100,0):
        dst=base+'/t'; shutil.rmtree(dst,ignore_errors=True); shutil.copytree(base+'/src',dst); os.truncate(seg.replace('/src/','/t/'),cut)
        v=subprocess.run([BIN+'/psctl','verify',dst],capture_output=True,text=True)
        lg=base+'/t.log'; open(lg,'w').close()
        try:
            q=Psd('--data-dir',dst,'--durability',dura,log=lg); c=C(q.port); j=c.join(job='c',inc=7); r=c.pull(c.table('ct').n(3),[1],0).rows
            say('trunc idle',W,'s',dura,'cut to',cut,'of',n,': STARTED, last_applied',j.n(3),'of 200, row',r,[l for l in open(lg).read().splitlines() if 'warn' in l or 'error' in l][:2],'verify rc',v.returncode,[l for l in v.stdout.splitlines() if 'whole' not in l][-2:]); q.kill()
        except RuntimeError as e: say('trunc idle',W,'s cut to',cut,'of',n,': refused',str(e)[-260:].strip(),'verify rc',v.returncode)
