"""joinblock.py NKEYS CODEC(topk|onebit|fp32d1) [psd args]: ONE worker sends ONE push; meanwhile: live worker's push/pull/beat, JOIN and LEAVE of new workers, psctl."""
from psc import *
n=int(sys.argv[1]); codec=sys.argv[2]; extra=sys.argv[3:]
p=Psd(*extra,pre=('nice','-n','-12'))
a=C(p.port,timeout=300); a.join(job='A',inc=1); 
dim={'topk':16384,'onebit':16384,'fp32d1':1,'topk1k':1024,'topk64':64}[codec]
t=a.table('w',dim=dim).n(3)
live=C(p.port,timeout=300); live.join(job='L',inc=1); lt=live.table('l').n(3)
if codec.startswith('topk'): body=bytes([1])*n+(struct.pack('<Hf',3,1.) if 0 else struct.pack('<H',3)+struct.pack('<f',1.))*n; s=section(t,codec=5,k=1,nk=n,kb=n,vb=6*n)
elif codec=='onebit': body=bytes([1])*n+(struct.pack('<f',.01)*64+bytes(2048))*n; s=section(t,codec=4,nk=n,kb=n,vb=2304*n)
else: body=bytes([1])*n+bytes(4*n); s=section(t,nk=n,kb=n,vb=4*n)
z=zc(body); plain=len(body)
done=[0]; t0=time.time(); res={}
def att():
    try: r=a.call(PUSH,push_head(1,0,1,1,[s]),body if 'NOZ' in os.environ else z,0 if 'NOZ' in os.environ else 1); res['push']=(repr(r),round(time.time()-t0,2))
    except Exception as e: res['push']=(repr(e),round(time.time()-t0,2))
    done[0]=1
L={'push':[],'beat':[],'pull':[]}
def lv():
    q=0
    while not done[0]:
        q+=1; x=time.time(); live.push(lt,[1],[(1,1)],q,q-1); y=time.time(); live.pull(lt,[1],q); w=time.time(); live.call(BEAT); L['push'].append((y-x)*1000); L['pull'].append((w-y)*1000); L['beat'].append((time.time()-w)*1000); time.sleep(.003)
J={'join':[],'leave':[],'psctl':[]}
def jn():
    while not done[0]:
        c=C(p.port,timeout=300); x=time.time(); c.join(job='N',inc=int(time.time()*1e6)); y=time.time(); c.call(LEAVE); J['join'].append(y-x); J['leave'].append(time.time()-y); c.close(); time.sleep(.01)
def ct():
    while not done[0]:
        x=time.time(); r=subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%p.port],capture_output=True,text=True); J['psctl'].append(time.time()-x); res['why']=r.stdout[:300]; time.sleep(.3)
th=[threading.Thread(target=f,daemon=True) for f in ((att,lv,ct) if 'NOJOIN' in os.environ else (att,lv,jn,ct))]; [x.start() for x in th]
mx=0
while not done[0] and time.time()-t0<100: mx=max(mx,p.rss()); time.sleep(.02)
say('joinblock',n,codec,extra,'sent',len(z),'plain',plain,'push',res.get('push',('not answered after %.0f s'%(time.time()-t0),)),'rss',round(mx))
if done[0]: [x.join(5) for x in th]
say('   live (ms)',{k:(len(v),round(pct(v,.5),1),round(pct(v,.99),1),round(max(v),1)) for k,v in L.items() if v},'new (s)',{k:(len(v),round(max(v),2)) for k,v in J.items() if v},res.get('why'))
if not done[0]:
    x=time.time(); r=subprocess.run([BIN+'/psctl','status','--server','127.0.0.1:%d'%p.port],capture_output=True,text=True); say('   psctl status',r.returncode,'%.2f'%(time.time()-x)); 
    a.s.shutdown(2); a.close(); x=time.time(); c=C(p.port,timeout=60)
    try: c.join(job='after',inc=1); say('   after the attacker closed: JOIN in %.1f s'%(time.time()-x))
    except Exception as e: say('   after the attacker closed: JOIN not in 60 s',repr(e))
x=time.time(); say('   stop',p.stop(60),'%.1f s'%(time.time()-x))
